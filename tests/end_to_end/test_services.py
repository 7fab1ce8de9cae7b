"""Nodes that know each other by the variables of a managed service alone: the same command everywhere, no flags."""
from harness import SeveralNodes, free_port, json, unittest


class Services(SeveralNodes):
    def run_with(self, variables_of):
        """The result of a run of two nodes, of which each has the variables it gets."""
        job = self.text_job(cluster="2x1xcpu")
        self.environment["LOCKSTEP_TOKEN"] = "of this test"
        for node in range(2):
            self.agents[node] = self.start("launch", job, "--json", environment=variables_of(node))
            self.addCleanup(self.kill, self.agents[node])
        result = self.ends()
        self.assertEqual(result["steps"], 40)
        alone = self.train(self.text_job(ranks=2))
        self.assertEqual(self.losses(result["run"]), self.losses(alone["run"]))

    def test_vertex_ai_says_it_in_cluster_spec(self):
        pools = {f"workerpool{i}": [f"127.0.0.1:{free_port()}"] for i in range(2)}
        self.run_with(lambda node: {"CLUSTER_SPEC": json.dumps(
            {"cluster": pools, "environment": "cloud", "task": {"type": f"workerpool{node}", "index": 0}})})

    def test_azure_ml_says_where_the_first_node_is(self):
        self.run_with(lambda node: {
            "AZUREML_RUN_ID": str(self.folder), "AZUREML_NODE_COUNT": "2",
            "AZ_BATCH_MASTER_NODE": "127.0.0.1:6000", "MASTER_ADDR": "127.0.0.1", "NODE_RANK": str(node), "RANK": str(node),
            "WORLD_SIZE": "2"})

    def test_half_of_what_a_service_says_is_refused(self):
        job = self.text_job(cluster="2x1xcpu")
        for variables, piece in (({"SM_HOSTS": '["algo-1", "algo-2"]'}, "SM_CURRENT_HOST"),
                                 ({"SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2"}, "SKYPILOT_NODE_RANK"),
                                 ({"CLUSTER_SPEC": "{}"}, "CLUSTER_SPEC"),
                                 ({"AZUREML_RUN_ID": "x", "AZUREML_NODE_COUNT": "2"}, "distribution")):
            self.expect_error(2, [piece], "launch", job, environment=variables)


if __name__ == "__main__":
    unittest.main()

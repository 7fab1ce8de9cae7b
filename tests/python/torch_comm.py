"""lockstep.comm with torch: a Horovod script ported by its imports, DistributedOptimizer against DistributedDataParallel.

    python_with_torch torch_comm.py        PYTHONPATH has the package, LOCKSTEP_BUILD_DIR the executable
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import textwrap
import unittest

sys.path.insert(0, os.path.dirname(__file__))
from ranks import clean_environment, run_ranks  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
MNIST = HERE / "horovod_mnist.py"
LOCKSTEP = pathlib.Path(os.environ["LOCKSTEP_BUILD_DIR"]) / "lockstep"

# The same program by PyTorch's own means, from the same seeds.
DDP = f"""
import json, os, sys
sys.path.insert(0, {str(HERE)!r})
import torch, torch.distributed as dist, torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from horovod_mnist import Net, generated_mnist
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(42 + rank)
torch.set_num_threads(1)
data = generated_mnist(640, 1)
sampler = torch.utils.data.distributed.DistributedSampler(data, num_replicas=size, rank=rank)
loader = torch.utils.data.DataLoader(data, batch_size=32, sampler=sampler)
held_out = generated_mnist(200, 2)
test_sampler = torch.utils.data.distributed.DistributedSampler(held_out, num_replicas=size, rank=rank)
test_loader = torch.utils.data.DataLoader(held_out, batch_size=100, sampler=test_sampler)
model = DistributedDataParallel(Net())
optimizer = torch.optim.SGD(model.parameters(), lr=0.01 * size, momentum=0.5)
losses = []
for epoch in (1, 2):
    model.train()
    sampler.set_epoch(epoch)
    for images, labels in loader:
        optimizer.zero_grad()
        loss = F.nll_loss(model(images), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    model.eval()
    for images, labels in test_loader:  # a loader draws from the generator that dropout draws from
        model.module(images)
print(json.dumps({{"rank": rank, "losses": losses}}), flush=True)
"""

TWINS = """
import torch, lockstep.comm as hvd
torch.set_num_threads(1)
hvd.init()
rank, size = hvd.rank(), hvd.size()

def twins(make):
    '''A model trained by all ranks on their parts, and the same by one on everything.'''
    torch.manual_seed(3)
    whole = make()
    torch.manual_seed(3)
    mine = make()
    return whole, mine

def parts(batch):
    share = len(batch) // size
    return batch[rank * share:(rank + 1) * share]
"""


def by_rank(text):
    found = [json.loads(line[line.index("{"):]) for line in text.splitlines() if '"losses"' in line]
    return [one["losses"] for one in sorted(found, key=lambda one: one["rank"])]


class HorovodMnist(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        ends = run_ranks(DDP)
        assert all(code == 0 for code, _, _ in ends), ends
        cls.ddp = by_rank("".join(out for _, out, _ in ends))

    def check(self, *command, **variables):
        with tempfile.TemporaryDirectory() as home:
            done = subprocess.run([*command, sys.executable, str(MNIST)], capture_output=True, text=True, timeout=600,
                                  env=clean_environment(LOCKSTEP_HOME=home, **variables))
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        losses = by_rank(done.stdout)
        self.assertEqual([len(one) for one in losses], [20, 20])
        worst = max(abs(a - b) for mine, theirs in zip(losses, self.ddp) for a, b in zip(mine, theirs))
        print(f"{' '.join(command[:1])} {variables}: worst difference to DDP over {len(losses[0])} steps {worst:.1e}, "
              f"last losses {losses[0][-1]:.6f} {losses[1][-1]:.6f}")
        self.assertEqual(losses, self.ddp, "two ranks add in one way only: every bit")

    def test_the_port_differs_by_its_import_alone(self):
        lines = [line for line in MNIST.read_text().splitlines() if "lockstep" in line]
        self.assertEqual(lines, ["import lockstep.comm as hvd"])

    def test_under_mpirun_the_losses_are_those_of_ddp(self):
        self.check("mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "2")

    def test_under_lockstep_launch_the_losses_are_those_of_ddp(self):
        self.check(str(LOCKSTEP), "launch", "--nproc", "2", "--max-restarts", "0", "--")

    def test_over_gloo_the_losses_are_those_of_ddp(self):
        self.check(str(LOCKSTEP), "launch", "--nproc", "2", "--max-restarts", "0", "--", LOCKSTEP_BACKEND="gloo")


class Ranks(unittest.TestCase):
    def succeed(self, text, world=2):
        ends = run_ranks(TWINS + textwrap.dedent(text), world)
        for rank, (code, out, err) in enumerate(ends):
            self.assertEqual(code, 0, f"rank {rank}\n{out}\n{err}")


class Optimizer(Ranks):
    def test_any_optimizer_takes_the_steps_of_one_rank_with_the_whole_batch(self):
        self.succeed("""
            def make():
                return torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2)).double()
            for kind, options, ours in ((torch.optim.AdamW, {"lr": 1e-2}, {}), (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}, {}),
                                        (torch.optim.AdamW, {"lr": 1e-2}, {"bucket_mib": 1e-4}),
                                        (torch.optim.Adagrad, {"lr": 1e-2}, {"num_groups": 2})):
                whole, mine = twins(make)
                plain = kind(whole.parameters(), **options)
                schedule = lambda one: torch.optim.lr_scheduler.StepLR(one, 2, 0.5)
                before = kind(mine.parameters(), **options)
                theirs, here = schedule(plain), schedule(before)
                spread = hvd.DistributedOptimizer(before, named_parameters=mine.named_parameters(), **ours)
                assert spread is before and isinstance(spread, kind)
                for step in range(6):
                    x = torch.randn(4 * size, 6, dtype=torch.double, generator=torch.Generator().manual_seed(step))
                    for model, optimizer, batch, scheduler in ((whole, plain, x, theirs), (mine, spread, parts(x), here)):
                        optimizer.zero_grad()
                        model(batch).square().mean().backward()
                        optimizer.step()
                        scheduler.step()
                for a, b in zip(whole.parameters(), mine.parameters()):
                    torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-14)
        """, world=3)

    def test_parameters_that_a_rank_does_not_use_count_as_zero(self):
        self.succeed("""
            layers = [torch.nn.Linear(2, 2, bias=False) for _ in range(3)]
            for layer in layers:
                torch.nn.init.ones_(layer.weight)
            module = torch.nn.ModuleList(layers)
            optimizer = hvd.DistributedOptimizer(torch.optim.SGD(module.parameters(), lr=1.0), bucket_mib=1e-6)
            layers[rank](torch.ones(1, 2)).sum().backward()  # another one on each rank; the last on none
            seen = hvd.allreduce(torch.tensor(1.0), op=hvd.Sum)  # other operations may come in between
            assert seen.item() == size
            optimizer.step()
            for index, layer in enumerate(layers):
                expected = 1.0 - (0.5 if index < 2 else 0.0)
                assert torch.equal(layer.weight, torch.full((2, 2), expected)), (index, layer.weight)
        """)

    def test_backward_passes_add_up_and_one_too_many_is_refused(self):
        self.succeed("""
            weight = torch.nn.Parameter(torch.zeros(2))
            optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), backward_passes_per_step=2, op=hvd.Sum)
            for turn in range(2):
                for value in (1.0, 2.0):
                    (weight * value * (rank + 1)).sum().backward()
                if turn == 0:
                    optimizer.step()
                    assert weight.tolist() == [-9.0, -9.0], "three times one and two, over both ranks"
                    optimizer.zero_grad()
            try:
                weight.sum().backward()
                raise SystemExit("a third backward() was accepted")
            except ValueError as error:
                assert "backward_passes_per_step" in str(error), error
            try:
                optimizer.zero_grad()
                raise SystemExit("zero_grad() was accepted")
            except ValueError as error:
                assert "on their way" in str(error), error
        """)

    def test_gradients_can_be_clipped_between_synchronize_and_step(self):
        self.succeed("""
            weight = torch.nn.Parameter(torch.zeros(4))
            optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0))
            (weight * 10.0 * (rank + 1)).sum().backward()
            optimizer.synchronize()
            assert torch.equal(weight.grad, torch.full((4,), 15.0))
            torch.nn.utils.clip_grad_norm_([weight], 1.0)
            with optimizer.skip_synchronize():
                optimizer.step()
            torch.testing.assert_close(weight.detach(), torch.full((4,), -0.5))
        """)

    def test_half_precision_on_the_way_and_of_the_parameters(self):
        self.succeed("""
            for compression, predivide in ((hvd.Compression.fp16, 1.0), (hvd.Compression.bf16, 1.0), (hvd.Compression.none, 2.0)):
                weight = torch.nn.Parameter(torch.zeros(3))
                optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), compression=compression,
                                                     gradient_predivide_factor=predivide)
                (weight * (rank + 1)).sum().backward()
                optimizer.step()
                assert weight.dtype == torch.float32 and torch.equal(weight.detach(), torch.full((3,), -1.5))
            for dtype in (torch.bfloat16, torch.float16):
                weight = torch.nn.Parameter(torch.zeros(3, dtype=dtype))
                other = torch.nn.Parameter(torch.zeros(3))
                optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight, other], lr=1.0))
                ((weight * (rank + 1)).sum() + other.sum()).backward()
                optimizer.step()
                assert torch.equal(weight.detach(), torch.full((3,), -1.5, dtype=dtype))
        """)

    def test_sparse_gradients_need_a_word(self):
        self.succeed("""
            table = torch.nn.Embedding(4, 2, sparse=True)
            torch.nn.init.zeros_(table.weight)
            optimizer = hvd.DistributedOptimizer(torch.optim.SGD(table.parameters(), lr=1.0), sparse_as_dense=True)
            table(torch.tensor([rank])).sum().backward()
            optimizer.step()
            assert table.weight.detach().tolist() == [[-0.5, -0.5], [-0.5, -0.5], [0.0, 0.0], [0.0, 0.0]]
        """)

    def test_wrong_settings_are_refused(self):
        self.succeed("""
            weight = torch.nn.Parameter(torch.zeros(3))
            make = lambda: torch.optim.SGD([weight], lr=1.0)
            once = hvd.DistributedOptimizer(make())
            for wrong in (lambda: hvd.DistributedOptimizer(make(), op=hvd.Adasum), lambda: hvd.DistributedOptimizer(once),
                          lambda: hvd.DistributedOptimizer(make(), named_parameters=[]), lambda: hvd.DistributedOptimizer(weight),
                          lambda: hvd.DistributedOptimizer(make(), op=hvd.Sum, gradient_predivide_factor=2.0)):
                try:
                    wrong()
                    raise SystemExit("accepted")
                except ValueError as error:
                    assert "\\n" not in str(error), error
        """, world=1)


class Tensors(Ranks):
    def test_tensors_of_any_layout_and_dtype(self):
        self.succeed("""
            wide = torch.arange(12.0).reshape(3, 4)
            for view in (wide.clone(), wide.t().clone().t(), wide[:, ::2].clone()[:, ::2], torch.tensor(2.0)):
                mine = view + rank
                assert torch.equal(hvd.allreduce(mine), view + 0.5) and torch.equal(mine, view + rank)
                hvd.allreduce_(mine)
                assert torch.equal(mine, view + 0.5)
            strided = torch.zeros(4, 4)
            strided[::2] = rank + 1
            hvd.allreduce_(strided[::2], op=hvd.Sum)
            assert strided[0, 0] == 3 and strided[1, 0] == 0, "the memory of the view"
            for dtype in (torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.int8, torch.uint8):
                total = hvd.allreduce(torch.full((3,), rank + 1, dtype=dtype), op=hvd.Sum)
                assert total.dtype == dtype and total.tolist() == [3, 3, 3], dtype
            many = [hvd.all_reduce_async_(torch.full((1000,), float(index)), op=hvd.Sum) for index in range(9)]
            assert [hvd.synchronize(one)[0].item() for one in many] == [2.0 * index for index in range(9)]
            assert hvd.broadcast(torch.tensor([rank == 0]), 0).tolist() == [True]
            assert hvd.allgather(torch.full((rank + 1, 2), rank)).tolist() == [[0, 0], [1, 1], [1, 1]]
        """)

    def test_gradients_flow_through_all_reduce_alone(self):
        self.succeed("""
            x = torch.full((2,), float(rank + 1), requires_grad=True)
            (hvd.allreduce(x) * (rank + 1)).sum().backward()
            assert x.grad.tolist() == [1.5, 1.5], x.grad
            try:
                hvd.allgather(x)
                raise SystemExit("accepted")
            except ValueError as error:
                assert "detach" in str(error), error
        """)

    def test_parameters_and_optimizer_state_come_from_the_root(self):
        self.succeed("""
            torch.manual_seed(rank)
            model = torch.nn.Linear(3, 2)
            optimizer = torch.optim.AdamW(model.parameters(), lr=0.1 * (rank + 1))
            if rank == 1:  # the others have no state yet
                model(torch.ones(1, 3)).sum().backward()
                optimizer.step()
            hvd.broadcast_parameters(model.state_dict(), root_rank=1)
            hvd.broadcast_optimizer_state(optimizer, root_rank=1)
            of_all = hvd.allgather_object((model.state_dict(), optimizer.state_dict()))
            assert repr(of_all[0]) == repr(of_all[1])
            assert optimizer.param_groups[0]["lr"] == 0.2 and len(optimizer.state) == 2
            try:
                hvd.broadcast_parameters(torch.nn.Linear(3, 2 + rank).state_dict())
                raise SystemExit("accepted")
            except ValueError as error:
                assert "unlike tensors" in str(error), error
        """)


if __name__ == "__main__":
    unittest.main(verbosity=2)

"""One replica group of one rank of a data-parallel GPT with torchft, after its train_ddp.py: manager and managed optimizer.

Gradients are averaged through Manager.allreduce as one flat tensor. torchft's DistributedDataParallel is not used: in 0.2.0 its hook
ends a survivor over Gloo (`assert fut._fut`) when a peer dies during an all-reduce, and the weights of all replicas are lost.

Appends `time step quorum replica pid` to the file of --steps-file after each step that was committed.
"""
import os
from datetime import timedelta

import torch
from pytorch_elastic import Samples, StepsFile, arguments, make_model, make_optimizer
from torchft import Manager, Optimizer, ProcessGroupGloo


def average_gradients(manager, parameters):
    flat = torch.cat([parameter.grad.flatten() for parameter in parameters])
    manager.allreduce(flat).wait()
    for parameter, values in zip(parameters, flat.split([parameter.numel() for parameter in parameters])):
        parameter.grad.copy_(values.view_as(parameter))


def main():
    args = arguments()
    replica, replicas = int(os.environ["REPLICA_GROUP_ID"]), int(os.environ["NUM_REPLICA_GROUPS"])
    model = make_model(args)
    bare = make_optimizer(model.parameters())

    def load(state):
        model.load_state_dict(state["model"])
        bare.load_state_dict(state["optimizer"])

    manager = Manager(pg=ProcessGroupGloo(timeout=timedelta(seconds=5)), min_replica_size=1, load_state_dict=load,
                      state_dict=lambda: {"model": model.state_dict(), "optimizer": bare.state_dict()},
                      replica_id=f"recovery_{replica}", timeout=timedelta(seconds=30), init_sync=False)
    parameters = list(model.parameters())
    optimizer = Optimizer(manager, bare)
    samples, steps = Samples(args), StepsFile(args.steps_file)
    while True:
        before = manager.current_step()
        optimizer.zero_grad()  # begins the quorum
        model(*samples.batch(before, replica, replicas)).backward()
        average_gradients(manager, parameters)
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        if manager.current_step() > before:
            # The process group is renewed with every quorum: its number tells steps before a failure from those after.
            steps.add(manager.current_step(), manager._quorum_id, replica)


if __name__ == "__main__":
    main()

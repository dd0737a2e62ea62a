"""Train on a Ray cluster: each process that Ray starts trains as ``colonnade train`` does."""
import ray.train
import torch
from ray.train.torch import TorchTrainer, get_device


def train(options):
    import colonnade
    if torch.cuda.is_available():
        torch.cuda.set_device(get_device())
    colonnade.train('mask_rcnn/xcit_small_12_p16_3x_coco', launcher='pytorch', **options)


options = dict(
    work_dir='/shared/run1',
    data_root='/shared/coco',
    resume='auto',
    total_batch_size=64,
    auto_scale_lr=True)
TorchTrainer(
    train,
    train_loop_config=options,
    scaling_config=ray.train.ScalingConfig(num_workers=16, use_gpu=True),
    run_config=ray.train.RunConfig(failure_config=ray.train.FailureConfig(max_failures=10)),
).fit()

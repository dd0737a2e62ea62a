# mmseg's schedule for SETR: batch 16 = 8 GPUs x 2 images, and ten times the rate for heads.
_base_ = './sgd_160k.py'

optim_wrapper = dict(paramwise_cfg=dict(custom_keys=dict(head=dict(lr_mult=10.))))
auto_scale_lr = dict(base_batch_size=16)

# SegFormer's head small enough to train on two CPU cores.
_base_ = './segformer.py'

model = dict(
    data_preprocessor=dict(size=(128, 128)),
    backbone=dict(arch='nano_12_p16', drop_path_rate=0.0),
    neck=dict(in_channels=128),
    decode_head=dict(in_channels=[128] * 4, channels=64))

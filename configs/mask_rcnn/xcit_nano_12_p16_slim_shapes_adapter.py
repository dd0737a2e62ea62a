_base_ = './xcit_nano_12_p16_slim_shapes.py'

model = dict(
    backbone=dict(defer_blocks=True),
    neck=dict(_delete_=True, type='ViTAdapter', in_channels=128, num_heads=4, stem_channels=16,
              fpn=dict(type='FPN', out_channels=64, num_outs=5)))  # yapf: disable

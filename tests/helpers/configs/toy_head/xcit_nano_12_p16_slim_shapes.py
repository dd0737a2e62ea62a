# All that a head needs: its name, what it reads and how many classes it knows.
_base_ = '../../../../configs/sem_fpn/xcit_nano_12_p16_slim_shapes.py'

custom_imports = dict(imports=_base_.custom_imports.imports + ['helpers.toy_head'])
model = dict(
    decode_head=dict(
        _delete_=True,
        type='ToyHead',
        in_channels=64,
        in_index=0,
        channels=32,
        num_classes=4,
        norm_cfg=dict(type='BN'),
        loss_decode=dict(type='CrossEntropyLoss')))

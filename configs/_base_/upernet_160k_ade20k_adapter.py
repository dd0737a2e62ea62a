# UperNet with ViT-Adapter (arXiv 2205.08534), 160,000 iterations of ADE20k. The authors' files load
# strictly. Differences: all blocks have the rate of stochastic depth that the last one has. The
# authors let the learning rate decay by 0.95 per layer, and test images of multiples of 32.
_base_ = './upernet_160k_ade20k.py'

model = dict(
    backbone=dict(
        _delete_=True,
        type='PlainViT',
        arch=dict(model='deit_base_patch16_224', class_token=False),
        drop_path_rate=0.3,
        pos_embed_resize='bicubic',
        defer_blocks=True),
    neck=dict(
        _delete_=True,
        type='ViTAdapter',
        in_channels=768,
        num_heads=12,
        value_ratio=0.5,
        drop_path_rate=0.3,
        add_each_map=True),
    decode_head=dict(in_channels=[768] * 4),
    auxiliary_head=dict(in_channels=768),
    test_cfg=dict(mode='slide', crop_size=(512, 512), stride=(341, 341)))

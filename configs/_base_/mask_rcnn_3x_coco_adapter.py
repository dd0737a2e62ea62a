# Mask R-CNN with ViT-Adapter (arXiv 2205.08534), 36 epochs of COCO. The authors' files load
# strictly. Differences: all blocks have the rate of stochastic depth that the last one has, and the
# authors crop training images to 1024 x 1024.
_base_ = './mask_rcnn_3x_coco.py'

model = dict(
    backbone=dict(
        _delete_=True,
        type='PlainViT',
        arch=dict(model='deit_base_patch16_224', class_token=False),
        drop_path_rate=0.2,
        pos_embed_resize='bicubic',
        window_size=14,
        window_padding='heads',
        defer_blocks=True),
    neck=dict(
        _delete_=True,
        type='ViTAdapter',
        in_channels=768,
        num_heads=12,
        value_ratio=0.5,
        drop_path_rate=0.2,
        fpn=dict(type='FPN', out_channels=256, num_outs=5)))

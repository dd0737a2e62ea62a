_base_ = '../_base_/mask_rcnn_100ep_coco_lsj.py'

# as ViTDet-B: windows, and all levels from the last map
model = dict(
    backbone=dict(
        type='PlainViT', arch='vit_base_patch16_224.mae', window_size=14, drop_path_rate=0.1),
    neck=dict(_delete_=True, type='SimplePyramid', in_channels=768, stride=16))

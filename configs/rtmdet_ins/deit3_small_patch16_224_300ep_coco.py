_base_ = '../_base_/rtmdet_ins_300ep_coco.py'

model = dict(backbone=dict(type='PlainViT', arch='deit3_small_patch16_224', drop_path_rate=0.1))

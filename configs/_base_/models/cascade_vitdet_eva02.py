# Cascade Mask R-CNN of ViTDet on EVA-02's weights, with rotary positions. The authors' files load
# strictly. As in their code, images are normalized for ImageNet, and not as timm's weights expect.
# Differences in training: see cascade_vitdet_mae.py.
_base_ = './cascade_vitdet_mae.py'

accepted_findings = ['normalisation']

model = dict(
    backbone=dict(
        arch=dict(_delete_=True, model='eva02_base_patch14_224.mim_in22k', class_token=False),
        patch_size=16,
        img_size=224,
        window_size=16,
        rel_pos_size=None))

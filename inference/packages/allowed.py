"""What the config of an untrusted package may build: types, texts and the largest numbers.

Each type was read: its constructor builds layers, and opens no file, URL or program. The lists name
what may be built, not what may not, so that a new type of a library is refused until it was read.
"""
from __future__ import annotations

#: detectors, segmenters and their parts, of mmdet, mmseg, mmcv, torch and Colonnade
MODEL_TYPES = frozenset("""
XCiT CaiT ResMLP PlainViT SimplifiedViT ColumnarPyramid SimplePyramid LinearHead

ATSS AutoAssign CascadeRCNN CenterNet CondInst ConditionalDETR CornerNet CrowdDet DABDETR DDOD
DDQDETR DETR DINO DeformableDETR FCOS FOVEA FSAF FastRCNN FasterRCNN GFL GridRCNN HybridTaskCascade
Mask2Former MaskFormer MaskRCNN MaskScoringRCNN NASFCOS PAA PanopticFPN PointRend QueryInst RPN
RTMDet RepPointsDetector RetinaNet SCNet SOLO SOLOv2 SingleStageDetector
SingleStageInstanceSegmentor SparseRCNN TOOD TridentFasterRCNN TwoStageDetector VFNet YOLACT YOLOF
YOLOV3 YOLOX EncoderDecoder CascadeEncoderDecoder DetDataPreprocessor SegDataPreProcessor
BatchFixedSizePad BatchResize BatchSyncRandomResize

CSPDarknet CSPNeXt Darknet DetectoRS_ResNeXt DetectoRS_ResNet EfficientNet HRNet HourglassNet
MobileNetV2 PyramidVisionTransformer PyramidVisionTransformerV2 RegNet Res2Net ResNeSt ResNeXt
ResNet ResNetV1c ResNetV1d SSDVGG SwinTransformer TridentResNet BEiT BiSeNetV1 BiSeNetV2 CGNet
DDRNet DeconvModule ERFNet FastSCNN ICNet InterpConv MAE MSCAN MixVisionTransformer MobileNetV3
PCPVT PIDNet STDCContextPathNet STDCNet SVT UNet VisionTransformer

BFP CSPNeXtPAFPN CTResNetNeck ChannelMapper DilatedEncoder DyHead FPG FPN FPN_CARAFE FPN_DropBlock
HRFPN NASFCOS_FPN NASFPN PAFPN RFP SSDNeck SSH YOLOV3Neck YOLOXPAFPN Feature2Pyramid ICNeck JPU
MLANeck MultiLevelNeck

ATSSHead AnchorFreeHead AnchorHead AutoAssignHead CascadeRPNHead CenterNetHead CenterNetUpdateHead
CentripetalHead CondInstBboxHead CondInstMaskHead ConditionalDETRHead CornerHead DABDETRHead
DDODHead DDQDETRHead DETRHead DINOHead DecoupledSOLOHead DecoupledSOLOLightHead DeformableDETRHead
EmbeddingRPNHead FCOSHead FSAFHead FoveaHead FreeAnchorRetinaHead GARPNHead GARetinaHead GFLHead
Mask2FormerHead MaskFormerHead NASFCOSHead PAAHead PISARetinaHead PISASSDHead RPNHead RTMDetHead
RTMDetInsHead RTMDetInsSepBNHead RTMDetSepBNHead RepPointsHead RetinaHead RetinaSepBNHead
SABLRetinaHead SOLOHead SOLOV2Head SSDHead StageCascadeRPNHead TOODHead VFNetHead YOLACTHead
YOLACTProtonet YOLOFHead YOLOV3Head YOLOXHead PanopticFPNHead HeuristicFusionHead
MaskFormerFusionHead

CascadeRoIHead DoubleHeadRoIHead DynamicRoIHead GridRoIHead HybridTaskCascadeRoIHead
MaskScoringRoIHead MultiInstanceRoIHead PISARoIHead PointRendRoIHead SCNetRoIHead SparseRoIHead
StandardRoIHead TridentRoIHead BBoxHead ConvFCBBoxHead DIIHead DoubleConvFCBBoxHead
MultiInstanceBBoxHead SABLHead SCNetBBoxHead Shared2FCBBoxHead Shared4Conv1FCBBoxHead CoarseMaskHead
DynamicMaskHead FCNMaskHead FeatureRelayHead FusedSemanticHead GlobalContextHead GridHead
HTCMaskHead MaskIoUHead MaskPointHead SCNetMaskHead SCNetSemanticHead GenericRoIExtractor
SingleRoIExtractor ResLayer DeformRoIPoolPack ModulatedDeformRoIPoolPack

ANNHead APCHead ASPPHead CCHead DAHead DDRHead DMHead DNLHead DPTHead DepthwiseSeparableASPPHead
DepthwiseSeparableFCNHead EMAHead EncHead FCNHead FPNHead GCHead ISAHead IterativeDecodeHead
KernelUpdateHead KernelUpdator LRASPPHead LightHamHead NLHead OCRHead PIDHead PSAHead PSPHead
PointHead SETRMLAHead SETRUPHead STDCHead SegformerHead SegmenterMaskTransformerHead UPerHead

AssociativeEmbeddingLoss BalancedL1Loss BoundaryLoss BoundedIoULoss CIoULoss CrossEntropyCustomLoss
CrossEntropyLoss DIoULoss DiceLoss DistributionFocalLoss EIoULoss EQLV2Loss FocalCustomLoss
FocalLoss GHMC GHMR GIoULoss GaussianFocalLoss HuasdorffDisstanceLoss IoULoss
KnowledgeDistillationKLDivLoss L1Loss L2Loss LovaszLoss MSELoss OhemCrossEntropy QualityFocalLoss
SIoULoss SeesawLoss SmoothL1Loss TverskyLoss VarifocalLoss

ATSSAssigner ApproxMaxIoUAssigner CenterRegionAssigner DynamicSoftLabelAssigner GridAssigner
HungarianAssigner MaxIoUAssigner MultiInstanceAssigner PointAssigner RegionAssigner SimOTAAssigner
TaskAlignedAssigner TopkHungarianAssigner UniformAssigner BBoxL1Cost BinaryFocalLossCost
ClassificationCost CrossEntropyLossCost DiceCost FocalLossCost IoUCost BboxOverlaps2D
BucketingBBoxCoder DeltaXYWHBBoxCoder DistancePointBBoxCoder LegacyDeltaXYWHBBoxCoder
PseudoBBoxCoder TBLRBBoxCoder YOLOBBoxCoder AnchorGenerator LegacyAnchorGenerator
LegacySSDAnchorGenerator MlvlPointGenerator PointGenerator SSDAnchorGenerator YOLOAnchorGenerator
CombinedSampler InstanceBalancedPosSampler IoUBalancedNegSampler MaskPseudoSampler
MultiInsRandomSampler OHEMPixelSampler OHEMSampler PseudoSampler RandomSampler ScoreHLRSampler

BN BN1d BN2d BN3d SyncBN MMSyncBN FrozenBN GN IN IN1d IN2d IN3d LN LN2d Clamp Clip ELU GELU HSigmoid
HSwish LeakyReLU PReLU RReLU ReLU ReLU6 SiLU Sigmoid Swish Tanh QuickGELU Conv Conv1d Conv2d Conv3d
ConvAWS ConvWS ConvModule Conv2dAdaptivePadding ConvTranspose2d ConvTranspose3d DCN DCNv2 SAC Linear
NormedConv2d NormedLinear DynamicConv DropBlock DropPath Dropout FFN MultiheadAttention
BaseTransformerLayer TransformerLayerSequence MultiScaleDeformableAttention ContextBlock
CrissCrossAttention GeneralizedAttention NonLocal2d LearnedPositionalEncoding SinePositionalEncoding
MSDeformAttnPixelDecoder PixelDecoder TransformerEncoderPixelDecoder bilinear carafe deconv deconv3d
nearest pixel_shuffle reflect replicate zero RoIAlign RoIPool SimpleRoIAlign nms soft_nms conv
dilation offset
""".split())

#: what ``init_cfg`` may name
INITIALIZERS = frozenset("""
Caffe2Xavier Constant Kaiming Normal TruncNormal Uniform Xavier
Caffe2XavierInit ConstantInit KaimingInit NormalInit TruncNormalInit UniformInit XavierInit
""".split())

#: steps of test pipelines -> what they may be told, beside their type
STEPS = dict(
    LoadImageFromFile={'to_float32', 'color_type', 'imdecode_backend', 'backend_args'},
    LoadAnnotations={
        'with_bbox', 'with_label', 'with_seg', 'with_mask', 'poly2mask', 'reduce_zero_label',
        'imdecode_backend', 'backend_args'
    },
    Resize={'scale', 'scale_factor', 'keep_ratio', 'clip_object_border', 'interpolation',
            'backend'},
    FixScaleResize={'scale', 'scale_factor', 'keep_ratio', 'clip_object_border', 'interpolation',
                    'backend'},
    FixShapeResize={'width', 'height', 'pad_val', 'keep_ratio', 'clip_object_border',
                    'interpolation', 'backend'},
    ResizeShortestEdge={'scale', 'max_size'},
    ResizeToMultiple={'size_divisor', 'interpolation'},
    Pad={'size', 'size_divisor', 'pad_to_square', 'pad_val', 'padding_mode'},
    Normalize={'mean', 'std', 'to_rgb'},
    CenterCrop={'crop_size', 'auto_pad', 'pad_cfg'},
    PackDetInputs={'meta_keys'},
    PackSegInputs={'meta_keys'},
)  # yapf: disable

#: texts in models and pipelines, beside types and the names of backbones' architectures
WORDS = frozenset("""
0010 0100 1111 BASIC BOTTLENECK P5 P6 STDCNet1 STDCNet2 act add after_conv2 after_conv3 after_dwconv
anchor_based anchor_free area att auto b0 b1 b2 b3 b4 b5 b6 b7 basic bbox bi-direction bicubic
bilinear bottleneck bu caffe cat center channel_add channel_mul circular cls_token collect collect-q
color cond_elewise concat constant conv cv2 dot_product embedded_gaussian gaussian giou huge iou
iof diou ciou lanczos large linear log logical_or mask max mean medium minmax moment multiple_select
naive ne nearest nearest-exact non_local none norm normal on_input on_lateral on_output one-sided
partial_minmax pillow pos_embed project pytorch random reflect replicate resize_concat score
siou slide small smooth_l1 square sum tiny trilinear unchanged whole xywh xyxy x-large x-small zeros
img instances gt_bboxes gt_masks gt_seg_map gt_semantic_seg

base_channels depth embed_dims expand_ratio num_channels num_blocks num_branches num_heads num_ffs
num_modules block stage1 stage2 stage3 stage4 feedforward_channels
norm_first attn cross_attn ffn self_attn top_down_key upsample
embed_dim attn_drop drop_rate layernorm
category_id flip flip_direction img_id img_path img_shape ori_shape pad_shape scale_factor
""".split())
#: also the beginnings of such
WORD_STARTS = ('loss_', 'regnetx_')

#: keys whose values must be among these, whatever their kind
VALUES = dict(pretrained=(None, False), backend_args=(None, ), file_client_args=(None, ))

MAX_NUMBER = 2**17  # integers in models; of the libraries' configs, 131,072 is the largest
MAX_SIDE = 4096  # pixels, of images that are resized or padded
#: the largest number below a key, where it decides how much memory a prediction takes
MAX_NUMBERS = dict(
    crop_size=MAX_SIDE,
    data_preprocessor=MAX_SIDE,
    grid_points=1024,
    mask_size=256,
    max_per_image=3000,
    max_per_img=3000,
    nms_post=3000,
    nms_pre=30000,
    output_size=64,
    pool_scales=64,
    pool_size=256,
    psp_out_channels=MAX_SIDE,
    roi_feat_size=64,
    scale_factor=4,
    upsample_ratio=16,
)

#: what evaluates a model, and what it reads; built by tools/test.py alone
OTHER_TYPES = frozenset("""
CocoDataset CityscapesDataset LVISDataset LVISV05Dataset LVISV1Dataset VOCDataset XMLDataset
ADE20KInstanceDataset CrowdHumanDataset DeepFashionDataset Objects365V1Dataset Objects365V2Dataset
OpenImagesDataset V3DetDataset WIDERFaceDataset iSAIDDataset BaseDetDataset BaseSegDataset
ADE20KDataset BDD100KDataset COCOStuffDataset ChaseDB1Dataset DRIVEDataset DarkZurichDataset
HRFDataset ISPRSDataset LIPDataset LoveDADataset MapillaryDataset_v1 MapillaryDataset_v2
NightDrivingDataset PascalContextDataset PascalContextDataset59 PascalVOCDataset PotsdamDataset
REFUGEDataset STAREDataset SynapseDataset ADE20KSegDataset CocoSegDataset
ClassBalancedDataset ConcatDataset RepeatDataset DefaultSampler AspectRatioBatchSampler
pseudo_collate default_collate
CocoMetric FasterCocoMetric LVISMetric VOCMetric OpenImagesMetric CrowdHumanMetric CityScapesMetric
IoUMetric CityscapesMetric SemSegMetric Evaluator TestLoop ValLoop
DetLocalVisualizer SegLocalVisualizer LocalVisBackend
""".split())

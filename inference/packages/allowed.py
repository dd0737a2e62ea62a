"""Types, strings and largest numbers that the config of an untrusted package can use.

The constructors of all types were reviewed: they build layers, and open no file, URL or process. A
type that is not listed is rejected until it is reviewed.
"""
from __future__ import annotations

#: models and their parts, from mmdet, mmseg, mmcv, torch and Colonnade
MODEL_TYPES = frozenset("""
ANNHead APCHead ASPPHead ATSS ATSSAssigner ATSSHead AnchorFreeHead AnchorGenerator AnchorHead
ApproxMaxIoUAssigner AssociativeEmbeddingLoss AutoAssign AutoAssignHead BBoxHead BBoxL1Cost BEiT BFP
BN BN1d BN2d BN3d BalancedL1Loss BaseTransformerLayer BatchFixedSizePad BatchResize
BatchSyncRandomResize BboxOverlaps2D BiSeNetV1 BiSeNetV2 BinaryFocalLossCost BoundaryLoss
BoundedIoULoss BucketingBBoxCoder CCHead CGNet CIoULoss CSPDarknet CSPNeXt CSPNeXtPAFPN CTResNetNeck
CaiT CascadeEncoderDecoder CascadeRCNN CascadeRPNHead CascadeRoIHead CenterNet CenterNetHead
CenterNetUpdateHead CenterRegionAssigner CentripetalHead ChannelMapper Clamp ClassificationCost Clip
CoarseMaskHead ColumnarPyramid CombinedSampler CondInst CondInstBboxHead CondInstMaskHead
ConditionalDETR ConditionalDETRHead ContextBlock Conv Conv1d Conv2d Conv2dAdaptivePadding Conv3d
ConvAWS ConvFCBBoxHead ConvModule ConvTranspose2d ConvTranspose3d ConvWS CornerHead CornerNet
CrissCrossAttention CrossEntropyCustomLoss CrossEntropyLoss CrossEntropyLossCost CrowdDet DABDETR
DABDETRHead DAHead DCN DCNv2 DDOD DDODHead DDQDETR DDQDETRHead DDRHead DDRNet DETR DETRHead DIIHead
DINO DINOHead DIoULoss DMHead DNLHead DPTHead Darknet DeconvModule DecoupledSOLOHead
DecoupledSOLOLightHead DeformRoIPoolPack DeformableDETR DeformableDETRHead DeltaXYWHBBoxCoder
DepthwiseSeparableASPPHead DepthwiseSeparableFCNHead DetBandsDataPreprocessor DetDataPreprocessor
DetectoRS_ResNeXt DetectoRS_ResNet DiceCost DiceLoss DilatedEncoder DistancePointBBoxCoder
DistributionFocalLoss DoubleConvFCBBoxHead DoubleHeadRoIHead DropBlock DropPath Dropout DyHead
DynamicConv DynamicMaskHead DynamicRoIHead DynamicSoftLabelAssigner EIoULoss ELU EMAHead EQLV2Loss
ERFNet EfficientNet EmbeddingRPNHead EncHead EncoderDecoder EoMTHead FCNHead FCNMaskHead FCOS
FCOSHead FFN FOVEA FPG FPN FPNHead FPN_CARAFE FPN_DropBlock FSAF FSAFHead FastRCNN FastSCNN
FasterRCNN Feature2Pyramid FeatureRelayHead FederatedLoss FocalCustomLoss FocalLoss FocalLossCost
FoveaHead FreeAnchorRetinaHead FrozenBN FusedSemanticHead GARPNHead GARetinaHead GCHead GELU GFL
GFLHead GHMC GHMR GIoULoss GN GaussianFocalLoss GeneralizedAttention GenericRoIExtractor
GlobalContextHead GridAssigner GridHead GridRCNN GridRoIHead HRFPN HRNet HSigmoid HSwish HTCMaskHead
HeuristicFusionHead HourglassNet HuasdorffDisstanceLoss HungarianAssigner HybridTaskCascade
HybridTaskCascadeRoIHead ICNeck ICNet IN IN1d IN2d IN3d ISAHead InstanceBalancedPosSampler
InterpConv IoUBalancedNegSampler IoUCost IoULoss IterativeDecodeHead JPU KernelUpdateHead
KernelUpdator KnowledgeDistillationKLDivLoss L1Loss L2Loss LN LN2d LRASPPHead LeakyReLU
LearnedPositionalEncoding LegacyAnchorGenerator LegacyDeltaXYWHBBoxCoder LegacySSDAnchorGenerator
LightHamHead Linear LinearHead LovaszLoss MAE MLANeck MMSyncBN MSCAN MSDeformAttnPixelDecoder
MSELoss Mask2Former Mask2FormerHead MaskFormer MaskFormerFusionHead MaskFormerHead MaskIoUHead
MaskPointHead MaskPseudoSampler MaskRCNN MaskScoringRCNN MaskScoringRoIHead MaxIoUAssigner
MeanScoreCascadeRoIHead MixVisionTransformer MlvlPointGenerator MobileNetV2 MobileNetV3
ModulatedDeformRoIPoolPack MultiInsRandomSampler MultiInstanceAssigner MultiInstanceBBoxHead
MultiInstanceRoIHead MultiLevelNeck MultiScaleDeformableAttention MultiheadAttention NASFCOS
NASFCOSHead NASFCOS_FPN NASFPN NLHead NonLocal2d NormedConv2d NormedLinear OCRHead OHEMPixelSampler
OHEMSampler OhemCrossEntropy PAA PAAHead PAFPN PCPVT PIDHead PIDNet PISARetinaHead PISARoIHead
PISASSDHead PMTHead PReLU PSAHead PSPHead PanopticFPN PanopticFPNHead PixelDecoder PlainViT
PointAssigner PointGenerator PointHead PointRend PointRendRoIHead PseudoBBoxCoder PseudoSampler
PyramidVisionTransformer PyramidVisionTransformerV2 QualityFocalLoss QueryInst QuickGELU RFP RPN
RPNHead RReLU RTMDet RTMDetHead RTMDetInsHead RTMDetInsSepBNHead RTMDetSepBNHead RandomSampler ReLU
ReLU6 RegNet RegionAssigner RepPointsDetector RepPointsHead Res2Net ResLayer ResMLP ResNeSt ResNeXt
ResNet ResNetV1c ResNetV1d RetinaHead RetinaNet RetinaSepBNHead RoIAlign RoIPool SABLHead
SABLRetinaHead SAC SCNet SCNetBBoxHead SCNetMaskHead SCNetRoIHead SCNetSemanticHead SETRMLAHead
SETRUPHead SIoULoss SOLO SOLOHead SOLOV2Head SOLOv2 SSDAnchorGenerator SSDHead SSDNeck SSDVGG SSH
STDCContextPathNet STDCHead STDCNet SVT ScoreHLRSampler SeesawLoss SegBandsDataPreProcessor
SegDataPreProcessor SegformerHead SegmenterMaskTransformerHead SemanticEoMTHead SemanticPMTHead
Shared2FCBBoxHead Shared4Conv1FCBBoxHead SiLU Sigmoid SimOTAAssigner SimplePyramid SimpleRoIAlign
SimplifiedViT SinePositionalEncoding SingleRoIExtractor SingleStageDetector
SingleStageInstanceSegmentor SmoothL1Loss SparseRCNN SparseRoIHead StageCascadeRPNHead
StandardRoIHead SwinTransformer Swish SyncBN TBLRBBoxCoder TOOD TOODHead Tanh TaskAlignedAssigner
TopkHungarianAssigner TransformerEncoderPixelDecoder TransformerLayerSequence TridentFasterRCNN
TridentResNet TridentRoIHead TverskyLoss TwoStageDetector UNet UPerHead UniformAssigner VFNet
VFNetHead VarifocalLoss ViTAdapter VisionTransformer XCiT YOLACT YOLACTHead YOLACTProtonet
YOLOAnchorGenerator YOLOBBoxCoder YOLOF YOLOFHead YOLOV3 YOLOV3Head YOLOV3Neck YOLOX YOLOXHead
YOLOXPAFPN bilinear carafe conv deconv deconv3d dilation nearest nms offset pixel_shuffle reflect
replicate soft_nms zero
""".split())

#: types of ``init_cfg``
INITIALIZERS = frozenset("""
Caffe2Xavier Caffe2XavierInit Constant ConstantInit Kaiming KaimingInit Normal NormalInit
TruncNormal TruncNormalInit Uniform UniformInit Xavier XavierInit
""".split())

#: step of a test pipeline -> its settings, except ``type``
STEPS = dict(
    LoadImageFromFile={'to_float32', 'color_type', 'imdecode_backend', 'backend_args'},
    LoadBands={'num_bands', 'suffixes', 'rgb_channels', 'backend_args'},
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

#: strings in models and pipelines, except types and names of architectures
WORDS = frozenset("""
0010 0100 1111 BASIC BOTTLENECK P5 P6 STDCNet1 STDCNet2 act add after_conv2 after_conv3 after_dwconv
anchor_based anchor_free area att attn attn_drop auto b0 b1 b2 b3 b4 b5 b6 b7 base_channels basic
bbox bi-direction bicubic bilinear block bottleneck bu caffe cat category_id center channel_add
channel_mul ciou circular cls_token collect collect-q color concat cond_elewise constant conv
cross_attn cv2 depth diou dot_product drop_rate embed_dim embed_dims embedded_gaussian expand_ratio
feedforward_channels ffn flip flip_direction gaussian giou gt_bboxes gt_masks gt_seg_map
gt_semantic_seg huge img img_id img_path img_shape instances iof iou lanczos large layernorm linear
log logical_or mask max mean medium minmax moment multiple_select naive ne nearest nearest-exact
non_local none norm norm_first normal num_blocks num_branches num_channels num_ffs num_heads
num_modules on_input on_lateral on_output one-sided ori_shape pad_shape partial_minmax pillow
pos_embed project pytorch random reflect replicate resize_concat scale_factor score self_attn siou
slide small smooth_l1 square stage1 stage2 stage3 stage4 sum tiny top_down_key trilinear unchanged
upsample whole x-large x-small xywh xyxy zeros
""".split())
#: prefixes of further strings
WORD_STARTS = ('loss_', 'regnetx_')

#: key -> its allowed values of any type
VALUES = dict(pretrained=(None, False), backend_args=(None, ), file_client_args=(None, ))

MAX_NUMBER = 2**17  # integers in models; the largest in configs of mmdet and mmseg is 131,072
MAX_SIDE = 4096  # pixels, of resized or padded images
#: key -> largest number, where it determines the memory of a prediction
MAX_NUMBERS = dict(
    crop_size=MAX_SIDE,
    data_preprocessor=MAX_SIDE,
    grid_points=1024,
    mask_size=256,
    mean=2**32,
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
    std=2**32,
    upsample_ratio=16,
)

#: datasets, metrics and loops, which only ``colonnade test`` builds
OTHER_TYPES = frozenset("""
ADE20KDataset ADE20KInstanceDataset ADE20KPanopticDataset ADE20KPanopticSegments ADE20KSegDataset
AspectRatioBatchSampler BDD100KDataset BaseDetDataset BaseSegDataset COCOStuffDataset
ChaseDB1Dataset CityScapesMetric CityscapesDataset CityscapesMetric ClassBalancedDataset CocoDataset
CocoMetric CocoPanopticDataset CocoSegDataset ConcatDataset CrowdHumanDataset CrowdHumanMetric
DRIVEDataset DarkZurichDataset DeepFashionDataset DefaultSampler DetLocalVisualizer Evaluator
FasterCocoMetric FasterLVISMetric HRFDataset ISPRSDataset IoUMetric LIPDataset LVISDataset
LVISInstances LVISMetric LVISV05Dataset LVISV1Dataset LocalVisBackend LoveDADataset
MapillaryDataset_v1 MapillaryDataset_v2 NightDrivingDataset Objects365V1Dataset Objects365V2Dataset
OpenImagesDataset OpenImagesMetric PanopticQuality PascalContextDataset PascalContextDataset59
PascalVOCDataset PotsdamDataset REFUGEDataset RepeatDataset STAREDataset SegLocalVisualizer
SemSegMetric SynapseDataset TestLoop V3DetDataset VOCDataset VOCMetric ValLoop WIDERFaceDataset
XMLDataset default_collate iSAIDDataset pseudo_collate
""".split())

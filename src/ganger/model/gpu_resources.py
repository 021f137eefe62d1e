"""Extended resources that are whole GPUs, by vendor.

A node has the first of these that pods may use, and pods that are placed on it ask for that one; parts of GPUs with a
resource of their own (`nvidia.com/mig-1g.5gb`) do not count. Sources: the documentation of each vendor's device plugin.
"""

from typing import Final, NamedTuple


class GpuResource(NamedTuple):
    """A resource of whole GPUs.

    Attributes:
        vendor: GPU type of a node that no label says more about.
        product_labels: labels of nodes with the GPU type; the first that a node has counts.
        visibility: variable by which the vendor's container runtime shows GPUs to a container; empty if none does.
        hidden: its value for a container without GPUs; empty if the vendor documents none.
    """

    name: str
    vendor: str
    product_labels: tuple[str, ...] = ()
    visibility: str = ""
    hidden: str = ""


_NVIDIA: Final = ("NVIDIA_VISIBLE_DEVICES", "void")
_ASCEND: Final = ("ASCEND_VISIBLE_DEVICES", "void")
GPU_RESOURCES: Final = {
    resource.name: resource
    for resource in (
        GpuResource(
            "nvidia.com/gpu", "nvidia", ("nvidia.com/gpu.product", "cloud.google.com/gke-accelerator"), *_NVIDIA
        ),
        GpuResource("alibabacloud.com/gpu-count", "nvidia", ("alibabacloud.com/gpu-card-model",), *_NVIDIA),
        GpuResource("amd.com/gpu", "amd", ("amd.com/gpu.product-name",), "AMD_VISIBLE_DEVICES", "none"),
        GpuResource("habana.ai/gaudi", "gaudi", (), "HABANA_VISIBLE_DEVICES"),
        GpuResource("gpu.intel.com/xe", "intel", ("gpu.intel.com/product",)),
        GpuResource("gpu.intel.com/i915", "intel", ("gpu.intel.com/product",)),
        GpuResource("google.com/tpu", "tpu", ("cloud.google.com/gke-tpu-accelerator",)),
        *(
            GpuResource(f"huawei.com/{chip}", "ascend", ("node.kubernetes.io/npu.chip.name",), *_ASCEND)
            for chip in ("Ascend910", "Ascend310P", "Ascend310")
        ),
    )
}
"""By name, those of vendors whose plugins are known; `registry.gpu_resources` has those of a site too."""

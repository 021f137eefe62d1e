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
    """

    name: str
    vendor: str
    product_labels: tuple[str, ...] = ()


GPU_RESOURCES: Final = {
    resource.name: resource
    for resource in (
        GpuResource("nvidia.com/gpu", "nvidia", ("nvidia.com/gpu.product", "cloud.google.com/gke-accelerator")),
        GpuResource("alibabacloud.com/gpu-count", "nvidia", ("alibabacloud.com/gpu-card-model",)),
        GpuResource("amd.com/gpu", "amd", ("amd.com/gpu.product-name",)),
        GpuResource("habana.ai/gaudi", "gaudi"),
        GpuResource("gpu.intel.com/xe", "intel", ("gpu.intel.com/product",)),
        GpuResource("gpu.intel.com/i915", "intel", ("gpu.intel.com/product",)),
        GpuResource("google.com/tpu", "tpu", ("cloud.google.com/gke-tpu-accelerator",)),
        GpuResource("huawei.com/Ascend910", "ascend", ("node.kubernetes.io/npu.chip.name",)),
        GpuResource("huawei.com/Ascend310P", "ascend", ("node.kubernetes.io/npu.chip.name",)),
        GpuResource("huawei.com/Ascend310", "ascend", ("node.kubernetes.io/npu.chip.name",)),
    )
}

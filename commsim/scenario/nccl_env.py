"""Names and values of NCCL's environment variables, for checking ``library.env``.

Names from NCCL's user guide, "Environment Variables" (2.27), and from the parameters that its source reads.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pydantic import model_validator

from commsim.document import refuse
from commsim.document.types import suggest
from commsim.errors import ScenarioError
from commsim.nccl.environment import FUNCTION_NAMES, MODELLED_ENV, path_level, whole
from commsim.scenario.strict import Strict

# Not complete, and need not be: a name that is missing here costs a warning.
_NAMES = """
ALGO ALLOC_P2P_NET_LL_BUFFERS BUFFSIZE BUILD CGA_CLUSTER_SIZE CHECK_POINTERS CHECKS_DISABLE CHUNK_SIZE
COLLNET_ENABLE COLLNET_NODE_THRESHOLD COMM_BLOCKING COMM_ID COMM_SHRINK_SHARE_RESOURCES
COMM_SPLIT_SHARE_RESOURCES CONF_FILE CONNECT_ROUND_MAX_PEERS CREATE_THREAD_CONTEXT CROSS_NIC CTA_POLICY
CUMEM_ENABLE CUMEM_HOST_ENABLE DEBUG DEBUG_FILE DEBUG_SUBSYS DEBUG_TIMESTAMP_FORMAT
DEBUG_TIMESTAMP_LEVELS DMABUF_ENABLE GDRCOPY_ENABLE GDRCOPY_FIFO_ENABLE GDRCOPY_FLUSH_ENABLE
GDRCOPY_SYNC_ENABLE GIN_ENABLE GRAPH_DUMP_FILE GRAPH_DUMP_FILE_RANK GRAPH_FILE GRAPH_HELPER_DISABLE
GRAPH_MIXING_SUPPORT GRAPH_REGISTER HOSTID IB_ADAPTIVE_ROUTING IB_ADDR_FAMILY IB_ADDR_RANGE
IB_AR_THRESHOLD IB_CUDA_SUPPORT IB_DATA_DIRECT IB_DISABLE IB_ECE_ENABLE IB_FIFO_TC IB_GID_INDEX IB_HCA
IB_MERGE_NICS IB_MERGE_VFS IB_MTU IB_OOO_RQ IB_PCI_RELAXED_ORDERING IB_PKEY IB_QPS_PER_CONNECTION
IB_RETRY_CNT IB_RETURN_ASYNC_EVENTS IB_ROCE_VERSION_NUM IB_SL IB_SPLIT_DATA_ON_QPS IB_TC IB_TIMEOUT
IB_USE_INLINE IGNORE_CPU_AFFINITY IGNORE_DISABLED_P2P INSPECTOR_ENABLE L1_SHARED_MEMORY_CARVEOUT
LAUNCH_MODE LAUNCH_ORDER_IMPLICIT LEGACY_CUDA_REGISTER LL_BUFFSIZE LL_THRESHOLD LL128_BUFFSIZE
LL128_NTHREADS LL_NTHREADS LOCAL_REGISTER MAX_CTAS MAX_NCHANNELS MAX_NRINGS MAX_P2P_NCHANNELS
MEM_SYNC_DOMAIN MIN_CTAS MIN_NCHANNELS MIN_NRINGS MIN_P2P_NCHANNELS MNNVL_CLIQUE_ID MNNVL_ENABLE
MNNVL_UUID MULTI_RANK_GPU_ENABLE NCHANNELS_PER_NET_PEER NET NET_DISABLE_INTRA NET_FORCE_FLUSH
NET_FORCE_MERGE NET_GDR_C2C NET_GDR_LEVEL NET_GDR_READ NET_MERGE_LEVEL NET_OVERHEAD NET_PLUGIN
NET_SHARED_BUFFERS NET_SHARED_COMMS NSOCKS_PERTHREAD NTHREADS NUM_RMA_CTX NVB_DISABLE NVB_PRECONNECT NVLS_CHUNKSIZE
NVLS_ENABLE NVLS_NCHANNELS NVLSTREE_MAX_CHUNKSIZE NVLINK_UTIL_CENTRIC_SCHED_ENABLE OOB_NET_ENABLE
OOB_NET_IFNAME P2P_DIRECT_DISABLE P2P_DISABLE P2P_LEVEL P2P_LL_THRESHOLD P2P_NET_CHUNKSIZE
P2P_NVL_CHUNKSIZE P2P_PCI_CHUNKSIZE P2P_PXN_LEVEL P2P_READ_ENABLE P2P_USE_CUDA_MEMCPY PARAM_DUMP_FILE
PAT_ENABLE PROFILE_PRIMITIVES PROFILER_PLUGIN PROGRESS_APPENDOP_FREQ PROTO PROXY_APPEND_BATCH_SIZE
PROXY_CPUSET PXN_C2C PXN_DISABLE RAS_ADDR RAS_ENABLE RAS_TIMEOUT_FACTOR RUNTIME_CONNECT
SET_CPU_STACK_SIZE SET_STACK_SIZE SET_THREAD_NAME SHM_DISABLE SHM_LOCALITY SHM_USE_CUDA_MEMCPY
SINGLE_PROC_MEM_REG_ENABLE SINGLE_RING_THRESHOLD SOCKET_FAMILY SOCKET_IFNAME SOCKET_NTHREADS
SOCKET_POLL_TIMEOUT_MSEC SOCKET_RETRY_CNT SOCKET_RETRY_SLEEP_MSEC STEPS SYM_CE_THRESHOLD SYM_CTAS
SYM_GIN_KERNELS_ENABLE SYM_KERNEL SYM_NOWIN_ENABLE SYM_RS_GIN_CHUNK_SIZE SYM_TMA_ENABLE TESTS_DEVICE
TESTS_SPLIT THREAD_THRESHOLDS TOPO_DUMP_FILE TOPO_DUMP_FILE_RANK TOPO_FILE TREE_THRESHOLD
TUNER_CONFIG_FILE TUNER_PLUGIN UID_STAGGER_RATE UID_STAGGER_THRESHOLD UNPACK_SHARED_BUFFER
USE_GRAPH_MIXING WARN_ENABLE_DEBUG_INFO WIN_ENABLE WIN_STRIDE WORK_ARGS_BYTES WORK_FIFO_BYTES
"""
KNOWN = (*(f"NCCL_{name}" for name in _NAMES.split()), "FI_CXI_RX_MATCH_MODE", "FI_CXI_SAFE_DEVMEM_COPY_THRESHOLD")
_VALUES = {
    "NCCL_ALGO": ("Ring", "Tree", "CollNetDirect", "CollNetChain", "NVLS", "NVLSTree", "PAT"),
    "NCCL_PROTO": ("LL", "LL128", "Simple"),
    "NCCL_CTA_POLICY": ("DEFAULT", "EFFICIENCY", "ZERO", "0", "1", "2"),
    "FI_CXI_RX_MATCH_MODE": ("hardware", "hybrid", "software"),
}
_FREE = {"NCCL_TUNER_PLUGIN", "NCCL_NET", "NCCL_SYM_KERNEL"}  # any text


def unknown_names(env: Mapping[str, str]) -> dict[str, str]:
    """For each variable that NCCL does not read: why, with the name probably meant."""
    notes = {}
    for name in env:
        if name not in KNOWN:
            hint = suggest(name, KNOWN)
            meant = hint if hint.startswith("did you mean") else "expected one that does; it is ignored"
            notes[name] = f"found a variable that NCCL does not read, {meant}"
    return notes


def value_faults(env: Mapping[str, str]) -> dict[str, str]:
    """What is wrong with values that have an effect: lists (``Ring,Tree``, ``^NVLS``), path levels, whole numbers."""
    faults = {}
    for name, values in _VALUES.items():
        known = {v.lower() for v in values} | set(FUNCTION_NAMES)
        for token in re.split(r"[,;:^|\s]+", env.get(name, "")):
            if token and token.lower() not in known:
                faults[name] = f"found {token[:40]!r}, {suggest(token, values)}"
                break
    for name in MODELLED_ENV.keys() - _VALUES.keys() - _FREE:
        try:
            if name.endswith("_LEVEL"):
                path_level(env, name, "SYS")
            else:
                whole(env, name)
        except ScenarioError as error:
            faults[name] = str(error).removeprefix(f"{name}: ")
    return faults


class ChoosesByEnv(Strict):
    """A block in which what runs is chosen by variables, as NCCL has it; keys of their names are pointed to them."""

    @model_validator(mode="before")
    @classmethod
    def _choices_are_variables(cls, data: Any) -> Any:
        for key, name, example in (("algorithm", "NCCL_ALGO", "Ring"), ("protocol", "NCCL_PROTO", "Simple")):
            known = isinstance(data, Mapping) and key in data and key not in cls.model_fields
            refuse((known, (key,), f"found the unknown key '{key}', did you mean library.env.{name}={example}?"))
        return data

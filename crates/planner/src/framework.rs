//! Training frameworks: behaviour that a layout does not determine.

/// Behaviour of a training framework that the layout does not determine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is an independent property")]
pub struct Framework {
    /// Bytes of an accumulated gradient element.
    pub gradient_bytes: u64,
    /// Memory traffic of accumulating a micro-batch's gradient, in bytes per parameter; 0 where the
    /// matmul accumulates.
    pub accumulation_bytes: u64,
    /// Bytes of a gradient element on the wire.
    pub wire_bytes: u64,
    /// Whether matmuls use 8-bit floats.
    pub fp8: bool,
    /// Whether gradient exchange overlaps with the backward pass.
    pub overlap: bool,
    /// Bucket size of gradient exchange; `None` grows it with the data-parallel degree.
    pub bucket_cap_bytes: Option<u64>,
    /// Whether ZeRO-3 gathers tensor by tensor instead of layer by layer.
    pub gathers_by_tensor: bool,
    /// Whether ZeRO-1 and ZeRO-2 shard every tensor on its own.
    pub shards_by_tensor: bool,
    /// Ranks that share a ZeRO shard set, if fewer than all.
    pub zero_group: Option<u64>,
    /// Whether norms, rotary embeddings and gates are separate kernels that save their inputs.
    pub eager: bool,
    /// Assignment of layers to stages.
    pub layer_split: LayerSplit,
    /// Bytes per logit while the loss is computed.
    pub logit_bytes: u64,
    /// Bytes per parameter of separate gradient buckets.
    pub bucket_buffer_bytes: u64,
    /// Temporary bytes per updated parameter during the optimizer step: widened gradients and
    /// intermediates of an unfused update.
    pub update_bytes: u64,
    /// Whether selective recomputation saves the output of every second matmul and nothing else.
    pub saves_alternate_matmuls: bool,
    /// Whether sharded weights exist in 32 bits only and are cast when gathered.
    pub casts_gathered_weights: bool,
    /// Whether tensor-parallel ranks synchronize their hosts before every collective when the
    /// pipeline spans nodes.
    pub syncs_hosts_in_stages: bool,
    /// Whether tensor-parallel collectives run in pieces beside their matmuls (async tensor
    /// parallelism).
    pub async_tensor_parallel: bool,
    /// Whether stages keep the activations sent and received for every micro-batch until the step
    /// ends.
    pub keeps_stage_messages: bool,
    /// Whether stages of a pipeline keep gathered weights and whole gradients until the step ends,
    /// whatever the ZeRO stage.
    pub keeps_gathered_in_stages: bool,
    /// Memory beside the tensors and the libraries of the device: communicators and caches.
    pub extra_bytes: u64,
    /// Quantity that the framework reports as memory.
    pub reported_memory: ReportedMemory,
}

/// Assignment of layers to stages when they do not divide evenly.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LayerSplit {
    /// The last stage has one layer fewer, then stages from the front on.
    Even,
    /// Stages at the end have one layer more.
    ExtraAtEnd,
    /// Equal cost per stage, with the head counted as its equivalent in layers.
    ByCost,
}

/// Quantity behind a published memory figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReportedMemory {
    /// Peak of allocated tensors on the fullest device.
    Allocated,
    /// Memory reserved by the allocator, fragmentation included, on the fullest device.
    Reserved,
    /// Memory reserved by the allocator on the first pipeline rank, which writes the log.
    ReservedOnFirstStage,
}

impl Framework {
    /// bf16 with 32-bit gradients, whose exchange overlaps with backward.
    pub const MODERN: Self = Self {
        gradient_bytes: 4,
        accumulation_bytes: 0,
        wire_bytes: 4,
        fp8: false,
        overlap: true,
        bucket_cap_bytes: None,
        gathers_by_tensor: false,
        shards_by_tensor: false,
        zero_group: None,
        eager: false,
        layer_split: LayerSplit::Even,
        logit_bytes: 10,
        bucket_buffer_bytes: 0,
        update_bytes: 0,
        saves_alternate_matmuls: false,
        casts_gathered_weights: false,
        syncs_hosts_in_stages: false,
        async_tensor_parallel: false,
        keeps_stage_messages: false,
        keeps_gathered_in_stages: false,
        extra_bytes: 0,
        reported_memory: ReportedMemory::Allocated,
    };
}

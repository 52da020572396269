//! Activation offload (vDNN, Rhu et al. 2016): what a layer saves leaves to pinned host memory
//! while later layers compute, and comes back ahead of its backward pass.
//!
//! Whatever the number of layers and micro-batches, the device holds the saved tensors of two
//! layers and the inputs of three, in a ring. The copies of a layer go by the copy stream of its
//! parity, so that they need not wait for those of its neighbours. Forward, the pass through a
//! layer overwrites the tensors of the layer two before, and waits for the copies of that one
//! alone. Backward, the values of a layer come back during the pass through the layer after it. The
//! copies of a section ([`crate::pipeline`]) end with it, which lets a device repeat the section as
//! a whole.

use super::{Accelerator, SavedBuffers, larger};
use lockstep_model::SavedLen;
use lockstep_tensor::device::{
    Buffer, Device, Dtype, DualBuffer, NUM_COPY_STREAMS, Result as DeviceResult, View, ViewMut,
};
use std::mem::take;

/// Layers whose saved tensors are on the device: one that computes, one that is copied.
const NUM_SAVED: usize = NUM_COPY_STREAMS;
/// Inputs on the device: those of the same layers, and the output of the one that computes.
const NUM_STREAMS: usize = NUM_SAVED + 1;

/// Numbers of elements that a layer offloads.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct OffloadLen {
    /// Its input; 0 where that stays on the device, because it arrives from another stage.
    pub(super) stream: usize,
    /// Its saved tensors.
    pub(super) saved: SavedLen,
}

impl OffloadLen {
    /// Number of elements.
    pub(super) const fn total(self) -> usize {
        self.stream + self.saved.kept + self.saved.rebuilt
    }

    fn max(self, other: Self) -> Self {
        Self { stream: self.stream.max(other.stream), saved: larger(self.saved, other.saved) }
    }
}

/// Buffers of a ring.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RingLen {
    num_streams: usize,
    num_saved: usize,
    each: OffloadLen,
}

impl RingLen {
    /// Ring for a range of blocks, of which these are offloaded.
    pub(super) fn new(offloaded: &[Option<OffloadLen>]) -> Self {
        let layers = || offloaded.iter().flatten();
        let num_streams = layers().filter(|layer| layer.stream > 0).count().min(NUM_STREAMS);
        let num_saved = layers().count().min(NUM_SAVED);
        let each = layers().fold(OffloadLen::default(), |most, layer| most.max(*layer));
        Self { num_streams, num_saved, each }
    }

    /// Ring that serves both, one after the other.
    pub(super) fn max(self, other: Self) -> Self {
        Self {
            num_streams: self.num_streams.max(other.num_streams),
            num_saved: self.num_saved.max(other.num_saved),
            each: self.each.max(other.each),
        }
    }

    /// Number of elements.
    pub(super) const fn total(self) -> usize {
        let SavedLen { kept, rebuilt } = self.each.saved;
        self.num_streams * self.each.stream + self.num_saved * (kept + rebuilt)
    }
}

/// Values of a layer for one micro-batch, in host memory.
#[derive(Debug)]
pub(super) struct HostCopy {
    len: OffloadLen,
    memory: Buffer,
}

impl HostCopy {
    pub(super) fn new(accelerator: Accelerator<'_>, len: OffloadLen) -> DeviceResult<Self> {
        let memory = match accelerator {
            Some(device) => device.allocate_pinned(Dtype::F32, len.total())?,
            None => Buffer::on_host(Dtype::F32, len.total()),
        };
        Ok(Self { len, memory })
    }

    /// Number of elements.
    pub(super) const fn len(&self) -> usize {
        self.len.total()
    }

    /// Whether the input of the layer is among the values.
    pub(super) const fn has_stream(&self) -> bool {
        self.len.stream > 0
    }

    /// Input, kept and rebuilt tensors, to read.
    fn views(&self) -> [View<'_>; 3] {
        let (stream, saved) = self.memory.view().split_at(self.len.stream);
        let (kept, rebuilt) = saved.split_at(self.len.saved.kept);
        [stream, kept, rebuilt]
    }

    /// Input, kept and rebuilt tensors, to write.
    fn views_mut(&mut self) -> [ViewMut<'_>; 3] {
        let (stream, saved) = self.memory.view_mut().split_at(self.len.stream);
        let (kept, rebuilt) = saved.split_at(self.len.saved.kept);
        [stream, kept, rebuilt]
    }
}

/// Device memory of offloaded values, shared by all micro-batches of a rank.
#[derive(Debug)]
pub(super) struct OffloadRing {
    streams: Vec<DualBuffer>,
    saved: Vec<SavedBuffers>,
    /// Layer whose values the last copy of each stream has brought, in the current section.
    arrived: [Option<usize>; NUM_COPY_STREAMS],
    /// Whether copies of a stream may still run.
    is_copying: [bool; NUM_COPY_STREAMS],
    /// First block of the current section.
    first: usize,
}

impl OffloadRing {
    pub(super) fn new(accelerator: Accelerator<'_>, len: RingLen) -> DeviceResult<Self> {
        let RingLen { num_streams, num_saved, each } = len;
        let streams = (0..num_streams).map(|_| DualBuffer::zeros(accelerator, each.stream));
        let saved = (0..num_saved).map(|_| SavedBuffers::new(accelerator, each.saved));
        Ok(Self {
            streams: streams.collect::<DeviceResult<_>>()?,
            saved: saved.collect::<DeviceResult<_>>()?,
            arrived: [None; NUM_COPY_STREAMS],
            is_copying: [false; NUM_COPY_STREAMS],
            first: 0,
        })
    }

    /// Number of elements.
    pub(super) fn len(&self) -> usize {
        let saved: usize = self.saved.iter().map(SavedBuffers::len).sum();
        saved + self.streams.iter().map(DualBuffer::len).sum::<usize>()
    }

    /// Begins a section whose first block in the order of the model is `first`.
    pub(super) fn begin_section(&mut self, first: usize) {
        (self.first, self.arrived) = (first, [None; NUM_COPY_STREAMS]);
    }

    /// Waits for all copies of the section.
    pub(super) fn finish_section(&mut self, device: &dyn Device) -> DeviceResult<()> {
        (0..NUM_COPY_STREAMS).try_for_each(|copy_stream| self.wait(device, copy_stream))
    }

    /// Inputs of layers, and the saved tensors of block number `index`, if it is a layer.
    pub(super) fn buffers(
        &mut self,
        index: usize,
    ) -> (&mut [DualBuffer], Option<&mut SavedBuffers>) {
        let at = index % self.saved.len().max(1);
        (&mut self.streams, self.saved.get_mut(at))
    }

    /// Number of the buffer with the input of a layer.
    pub(super) fn place_of_stream(&self, index: usize) -> usize {
        index % self.streams.len().max(1)
    }

    /// Waits until a forward pass through a layer may overwrite its buffers: its saved tensors, and
    /// the input of the next layer, which were those of the layer two before.
    pub(super) fn reclaim(&mut self, device: &dyn Device, index: usize) -> DeviceResult<()> {
        self.wait(device, index % NUM_COPY_STREAMS)
    }

    /// Starts to copy the values of a layer to the host, after the work so far.
    pub(super) fn store(
        &mut self,
        device: &dyn Device,
        index: usize,
        to: &mut HostCopy,
    ) -> DeviceResult<()> {
        let copy_stream = index % NUM_COPY_STREAMS;
        let (place, has_stream) = (self.place_of_stream(index), to.has_stream());
        let saved = &self.saved[index % self.saved.len()];
        let stream = has_stream.then(|| &self.streams[place]);
        let sources = [stream, Some(&saved.kept), Some(&saved.rebuilt)];
        for (from, to) in sources.into_iter().zip(to.views_mut()) {
            if let (Some(from), false) = (from, to.is_empty()) {
                device.copy_async(copy_stream, from.view()?.range(0..to.len()), to)?;
                self.is_copying[copy_stream] = true;
            }
        }
        Ok(())
    }

    /// Brings the values of a layer back, and starts to bring those of the layer before it, which
    /// the section needs next. Either layer may have none.
    pub(super) fn load(
        &mut self,
        device: &dyn Device,
        index: usize,
        [before, own]: [Option<&HostCopy>; 2],
    ) -> DeviceResult<()> {
        if let Some(own) = own {
            self.start_to_load(device, index, own)?;
            self.wait(device, index % NUM_COPY_STREAMS)?;
        }
        match before {
            Some(before) if index > self.first => self.start_to_load(device, index - 1, before),
            _ => Ok(()),
        }
    }

    fn start_to_load(
        &mut self,
        device: &dyn Device,
        index: usize,
        from: &HostCopy,
    ) -> DeviceResult<()> {
        let copy_stream = index % NUM_COPY_STREAMS;
        if self.arrived[copy_stream].replace(index) == Some(index) {
            return Ok(());
        }
        let (place, has_stream) = (self.place_of_stream(index), from.has_stream());
        let num_saved = self.saved.len();
        let saved = &mut self.saved[index % num_saved];
        let stream = if has_stream { Some(&mut self.streams[place]) } else { None };
        let targets = [stream, Some(&mut saved.kept), Some(&mut saved.rebuilt)];
        for (to, from) in targets.into_iter().zip(from.views()) {
            if let (Some(to), false) = (to, from.is_empty()) {
                device.copy_async(copy_stream, from, to.view_mut()?.range(0..from.len()))?;
                self.is_copying[copy_stream] = true;
            }
        }
        Ok(())
    }

    fn wait(&mut self, device: &dyn Device, copy_stream: usize) -> DeviceResult<()> {
        if take(&mut self.is_copying[copy_stream]) {
            device.wait_for_copies(copy_stream)?;
        }
        Ok(())
    }
}

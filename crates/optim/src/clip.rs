//! Gradient clipping by the global norm (Pascanu et al. 2013).
//!
//! The norm is a sum over every parameter, so its order must not depend on the layout: squares are
//! summed in `f64` per 4,096 elements of each tensor, and those partial sums are added by parameter
//! name, then by chunk. A shard that starts at a multiple of 4,096 elements computes its own
//! chunks; the partial sums are gathered, never added on the way.
//!
//! All gradients are clipped together by the norm over all of them, except for parameter groups
//! with a limit of their own: a group is clipped by its own norm and does not count for the others.

use crate::Slot;
use lockstep_config::Optim;
use lockstep_tensor::Cpu;
use lockstep_tensor::device::{Buffer, Device, Dtype, Result as DeviceResult, View, ViewMut};

/// Elements of a tensor whose squares are summed together.
pub const CHUNK_LEN: usize = 4096;

/// Slots whose chunks one call of a device sums.
const SLOTS_PER_CALL: usize = 128;

/// Largest number of clip classes: one per parameter group, and one for the rest.
pub const MAX_CLASSES: usize = 33;

/// Computes the norm of buffers of one layout; the memory for partial sums is allocated once.
#[derive(Debug)]
pub struct GlobalNorm {
    /// Sorted by name and offset in the parameter.
    slots: Vec<Slot>,
    /// Sum of squares of every chunk, in slot order.
    chunks: Vec<f64>,
    /// Tensor of every chunk.
    tensors: Vec<usize>,
    /// Sums on the accelerator that computes them.
    on_device: Option<Buffer>,
}

/// Clip class of every parameter and limit of every class.
#[derive(Clone, Debug, PartialEq)]
pub struct ClipPlan {
    limits: [f64; MAX_CLASSES],
    /// By tensor index; a tensor that is not listed is in the first class.
    class_of: Vec<usize>,
}

/// Norm of a gradient and the scales that clip it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Clip {
    /// The Euclidean norm over all parameters; not finite when any gradient is not.
    pub norm: f64,
    /// Factor on the gradients of each class: 1 within the limit.
    scales: [f32; MAX_CLASSES],
}

impl Clip {
    /// Makes a clip of a norm that is within every limit.
    pub fn unclipped(norm: f64) -> Self {
        Self { norm, scales: [1.0; MAX_CLASSES] }
    }
}

/// Clip class of a group's parameters, or of parameters without a group.
pub(crate) fn class_of_group(optim: &Optim, group: Option<usize>) -> usize {
    match group {
        Some(index) if optim.groups[index].clip.is_some() => index + 1,
        _ => 0,
    }
}

impl ClipPlan {
    /// Clips all gradients together; a `limit` of 0 switches clipping off.
    pub const fn global(limit: f64) -> Self {
        let mut limits = [0.0; MAX_CLASSES];
        limits[0] = limit;
        Self { limits, class_of: Vec::new() }
    }

    /// Reads the limits of the settings, for tensors of these names, ordered by index.
    pub fn new<'a>(optim: &Optim, names: impl Iterator<Item = &'a str>) -> Self {
        let mut plan = Self::global(optim.clip);
        for (group, limit) in optim.groups.iter().zip(&mut plan.limits[1..]) {
            *limit = group.clip.unwrap_or(0.0);
        }
        plan.class_of = names.map(|name| class_of_group(optim, optim.group_of(name))).collect();
        plan
    }
}

impl Clip {
    /// Sums the squares of chunks, each with its tensor, in the order given, and derives the
    /// scales.
    pub fn new(plan: &ClipPlan, chunks: impl Iterator<Item = (usize, f64)>) -> Self {
        let mut total = 0.0;
        let mut sums = [0.0; MAX_CLASSES];
        for (tensor, sum) in chunks {
            total += sum;
            sums[plan.class_of.get(tensor).copied().unwrap_or(0)] += sum;
        }
        let mut scales = [1.0; MAX_CLASSES];
        for ((scale, sum), limit) in scales.iter_mut().zip(sums).zip(plan.limits) {
            let norm: f64 = sum.sqrt();
            if limit > 0.0 && norm > limit {
                *scale = (limit / norm) as f32;
            }
        }
        Self { norm: total.sqrt(), scales }
    }

    /// Scales every gradient alike, without a measured norm.
    pub const fn uniform(scale: f32) -> Self {
        Self { norm: 0.0, scales: [scale; MAX_CLASSES] }
    }

    /// Whether any gradient is clipped.
    pub fn is_active(&self) -> bool {
        self.scales.iter().any(|scale| *scale < 1.0)
    }

    /// Factor on the gradients of a class.
    pub const fn scale(&self, class: usize) -> f32 {
        self.scales[class]
    }
}

impl GlobalNorm {
    /// Prepares for buffers with the layout of `slots`.
    pub fn new(slots: &[Slot]) -> Self {
        let mut slots = slots.to_vec();
        slots.sort_by(|a, b| (&a.name, a.first).cmp(&(&b.name, b.first)));
        let tensors: Vec<usize> =
            slots.iter().flat_map(|slot| vec![slot.tensor; num_chunks(slot)]).collect();
        Self { slots, chunks: vec![0.0; tensors.len()], tensors, on_device: None }
    }

    /// Computes the norm and the scales that bring it within the limits. `grads` returns the flat
    /// buffer of each block.
    pub fn clip<'a, G: AsRef<[f32]> + ?Sized + 'a>(
        &mut self,
        cpu: &Cpu,
        grads: impl Fn(usize) -> &'a G,
        plan: &ClipPlan,
    ) -> Clip {
        self.chunk_sums(cpu, |slot| &grads(slot.block).as_ref()[slot.grads.clone()]);
        Clip::new(plan, self.by_tensor())
    }

    /// Computes the sum of squares of every chunk, by parameter name and offset. Where ranks have
    /// parts of the gradients, all their chunks in this order add up to the norm. `values` returns
    /// the elements of a slot.
    pub fn chunk_sums<'a>(&mut self, cpu: &Cpu, values: impl Fn(&Slot) -> &'a [f32]) -> &[f64] {
        self.chunk_sums_on(cpu, |slot| Ok(View::of(values(slot)))).expect("sums of the host");
        &self.chunks
    }

    /// Allocates memory for sums that an accelerator computes.
    pub fn allocate_on(&mut self, accelerator: &dyn Device) -> DeviceResult<()> {
        self.on_device = Some(accelerator.allocate(Dtype::F64, self.chunks.len())?);
        Ok(())
    }

    /// Like [`Self::chunk_sums`], on a device; waits for the sums.
    pub fn chunk_sums_on<'a>(
        &mut self,
        device: &dyn Device,
        values: impl Fn(&Slot) -> DeviceResult<View<'a>>,
    ) -> DeviceResult<()> {
        let Self { slots, chunks, on_device, .. } = self;
        let mut sum = || {
            let mut rest = match on_device {
                Some(sums) => sums.view_mut(),
                None => ViewMut::of(chunks),
            };
            for slots in slots.chunks(SLOTS_PER_CALL) {
                let mut tensors = [View::of::<f32>(&[]); SLOTS_PER_CALL];
                for (tensor, slot) in tensors.iter_mut().zip(slots) {
                    *tensor = values(slot)?;
                }
                let (own, behind) = rest.split_at(slots.iter().map(num_chunks).sum());
                device.sum_squares(&tensors[..slots.len()], own)?;
                rest = behind;
            }
            Ok(())
        };
        let mut summed = Ok(());
        device.replay(SECTION, &mut || summed = sum())?;
        summed?;
        match on_device {
            Some(sums) => device.copy(sums.view(), ViewMut::of(chunks)),
            None => Ok(()),
        }
    }

    /// Slots in the order of their chunks.
    pub fn slots(&self) -> &[Slot] {
        &self.slots
    }

    /// Last result of [`Self::chunk_sums`].
    pub fn last_sums(&self) -> &[f64] {
        &self.chunks
    }

    /// Last result of [`Self::chunk_sums`], each with its tensor index.
    pub fn by_tensor(&self) -> impl Iterator<Item = (usize, f64)> {
        self.tensors.iter().copied().zip(self.chunks.iter().copied())
    }
}

/// Number of the sums' section of a step: sections of passes have smaller ones.
const SECTION: u64 = u64::MAX;

/// Number of chunks of a slot.
pub fn num_chunks(slot: &Slot) -> usize {
    slot.range.len().div_ceil(CHUNK_LEN)
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockstep_config::{Group, Recipe};
    use lockstep_tensor::Isa;

    fn slot(block: usize, name: &str, range: std::ops::Range<usize>) -> Slot {
        let tensor = (name.as_bytes()[0] - b'a') as usize;
        let grads = range.clone();
        let name = name.to_string();
        let shape = [1, range.len()];
        let (piece, first, decay, matrix) = (0, 0, true, None);
        Slot { block, name, tensor, piece, range, grads, first, shape, decay, matrix }
    }

    fn test_values(len: usize) -> Vec<f32> {
        (0..len).map(|i| (i * 37 % 101) as f32 * 1e-3 - 0.05).collect()
    }

    #[test]
    fn the_norm_covers_all_slots_and_no_gaps() {
        let cpu = Cpu::single(Isa::detect());
        let grads = [vec![3.0, 100.0, 0.0], vec![-100.0, 4.0]];
        let slots = [slot(0, "b", 0..1), slot(1, "a", 1..2)];
        let plan = ClipPlan::global(1.0);
        let clip = GlobalNorm::new(&slots).clip(&cpu, |block| &grads[block], &plan);
        assert!((clip.norm - 5.0).abs() < 1e-12);
        assert!((clip.scale(0) - 0.2).abs() < 1e-7);
    }

    #[test]
    fn a_norm_within_the_limit_or_without_one_does_not_clip() {
        let cpu = Cpu::single(Isa::detect());
        let mut norm = GlobalNorm::new(&[slot(0, "a", 0..2)]);
        for limit in [5.0, 6.0, 0.0] {
            let clip = norm.clip(&cpu, |_| &[3.0, 4.0], &ClipPlan::global(limit));
            assert_eq!(clip.scale(0).to_bits(), 1.0_f32.to_bits());
        }
    }

    #[test]
    fn a_group_with_a_limit_is_clipped_by_itself() {
        let cpu = Cpu::single(Isa::detect());
        let mut optim = Recipe::default().optim;
        optim.clip = 1.0;
        let group = |pattern: &str, clip| Group {
            pattern: pattern.to_owned(),
            lr_scale: 1.0,
            weight_decay: None,
            clip,
            frozen: false,
            freeze_after: None,
            unfreeze_at: None,
        };
        optim.groups = vec![group("b", None), group("c", Some(13.0)), group("d", Some(0.0))];
        let plan = ClipPlan::new(&optim, ["a", "b", "c", "d"].into_iter());
        let slots = [(0, "a"), (1, "b"), (2, "c"), (3, "d")].map(|(at, n)| slot(0, n, at..at + 1));
        let clip = GlobalNorm::new(&slots).clip(&cpu, |_| &[3.0, 4.0, 26.0, 1e6], &plan);
        let scales: Vec<f32> = (0..4).map(|class| clip.scale(class)).collect();
        assert_eq!(scales, [0.2, 1.0, 0.5, 1.0], "a with b; c alone; d not at all");
        assert!(clip.norm > 1e6, "the norm is still that of everything");
    }

    #[test]
    fn the_norm_does_not_depend_on_the_block_layout() {
        let cpu = Cpu::single(Isa::detect());
        let plan = ClipPlan::global(1.0);
        let (a, b) = (test_values(CHUNK_LEN + 77), test_values(3 * CHUNK_LEN));
        let joined = [[b.clone(), a.clone()].concat()];
        let end = a.len() + b.len();
        let slots = [slot(0, "b", 0..b.len()), slot(0, "a", b.len()..end)];
        let one = GlobalNorm::new(&slots).clip(&cpu, |block| &joined[block], &plan);
        let slots = [slot(0, "a", 0..a.len()), slot(1, "b", 0..b.len())];
        let two = GlobalNorm::new(&slots).clip(&cpu, |block| [&a, &b][block], &plan);
        assert_eq!(one.norm.to_bits(), two.norm.to_bits());
    }

    #[test]
    fn a_gradient_that_is_not_finite_gives_a_norm_that_is_not_finite() {
        let cpu = Cpu::single(Isa::detect());
        let plan = ClipPlan::global(1.0);
        for bad in [f32::NAN, f32::INFINITY] {
            let grads = [1.0, bad];
            let clip = GlobalNorm::new(&[slot(0, "a", 0..2)]).clip(&cpu, |_| &grads, &plan);
            assert!(!clip.norm.is_finite());
        }
    }
}

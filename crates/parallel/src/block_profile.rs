//! Block profiling: measured forward and backward times of a model's blocks, to balance pipeline
//! stages.
//!
//! FLOPs ignore memory-bound work: an embedding has none, and a loss over a large vocabulary takes
//! longer than its products. So, if the recipe asks for it, rank 0 runs a micro-batch through every
//! kind of block before the first step, and stages are balanced by these times. Results do not
//! depend on the partition.

use crate::groups::Groups;
use crate::token_stage::TokenStage;
use lockstep_comm::CommError;
use lockstep_config::LossScale;
use lockstep_model::{
    Block, Blueprint, Context, Grads, Microbatch, MicrobatchShape, Mode, Saved, Scratch,
    SingleRank, init,
};
use lockstep_platform::World;
use lockstep_tensor::device::{
    Buffer, Compute, Dtype, DualBuffer, Result as DeviceResult, View, ViewMut, copy_rounded,
};
use lockstep_tensor::random::{self, Key};

/// Runs per block; the fastest counts, because slower ones were disturbed. The first touches the
/// memory.
const NUM_ROUNDS: usize = 4;

/// Nanoseconds of a micro-batch forward and backward through every block, broadcast from rank 0;
/// zeros without a pipeline.
pub fn block_costs(
    blueprint: &Blueprint,
    microbatch: MicrobatchShape,
    compute: &Compute,
    groups: &Groups,
    world: &World,
) -> Result<Vec<u64>, CommError> {
    let mut costs = vec![0; blueprint.blocks.len()];
    if groups.rank() == 0 && groups.pipeline().group_size() > 1 {
        measure(blueprint, microbatch, compute, world, &mut costs)?;
    }
    groups.world().broadcast(&mut costs, 0)?;
    Ok(costs)
}

/// Nanoseconds of a micro-batch forward and backward through the whole model, on this rank.
pub fn microbatch_cost(
    blueprint: &Blueprint,
    microbatch: MicrobatchShape,
    compute: &Compute,
    world: &World,
) -> DeviceResult<u64> {
    let mut costs = vec![0; blueprint.blocks.len()];
    measure(blueprint, microbatch, compute, world, &mut costs)?;
    Ok(costs.iter().sum())
}

/// Measures one block of each kind: the layers of a model are alike.
fn measure(
    blueprint: &Blueprint,
    microbatch: MicrobatchShape,
    compute: &Compute,
    world: &World,
    costs: &mut [u64],
) -> DeviceResult<()> {
    let blocks = &blueprint.blocks;
    let kind = |block: &dyn Block| {
        let flops = block.flops_per_token(microbatch.tokens);
        (block.io(), block.num_params(), block.saved_len(microbatch), flops)
    };
    let samples = Samples::new(blueprint, microbatch);
    for index in 0..blocks.len() {
        let alike = |other: &usize| kind(&*blocks[*other]) == kind(&*blocks[index]);
        costs[index] = match (0..index).find(alike) {
            Some(before) => costs[before],
            None => samples.nanoseconds(&*blocks[index], compute, world)?,
        };
    }
    Ok(())
}

/// A micro-batch of tokens, uniform over the vocabulary.
struct Samples {
    microbatch: MicrobatchShape,
    rows: usize,
    /// Type of activations.
    dtype: Dtype,
    tokens: Vec<u32>,
}

impl Samples {
    fn new(blueprint: &Blueprint, microbatch: MicrobatchShape) -> Self {
        let key = Key::new(0, "tokens to measure with");
        let draw = |i: usize| (key.uniform_f64(i as u64) * blueprint.vocab as f64) as u32;
        let tokens = (0..microbatch.rows()).map(draw).collect();
        let (rows, dtype) = (blueprint.stream_rows(microbatch), blueprint.activations);
        Self { microbatch, rows, dtype, tokens }
    }

    fn nanoseconds(
        &self,
        block: &dyn Block,
        compute: &Compute,
        world: &World,
    ) -> DeviceResult<u64> {
        let device = compute.device();
        let zeros = |len: usize| DualBuffer::<Vec<f32>>::zeros(compute.accelerator(), len);
        let mut params = zeros(block.num_params())?;
        for param in block.params() {
            init::fill(compute, 0, param, 0, &mut params[param.range()]);
        }
        let input = self.normal(compute, "input", block.io().input_width())?;
        let mut output = self.normal(compute, "output", block.io().output_width())?;
        let first_d_stream = self.normal(compute, "gradient", block.io().max_width())?;
        let mut d_stream = self.normal(compute, "gradient", block.io().max_width())?;
        let mut grads = zeros(block.num_params())?;
        let all: Vec<_> = block.params().iter().map(lockstep_model::Param::range).collect();
        let len = block.saved_len(self.microbatch);
        let (mut kept, mut rebuilt) = (zeros(len.kept)?, zeros(len.rebuilt)?);
        let mut scratch = Scratch::new(device, block.scratch_len(self.microbatch))?;
        let mut tokens = TokenStage::new(compute.accelerator(), self.microbatch)?;
        let microbatch = Microbatch {
            shape: self.microbatch,
            inputs: View::of(&self.tokens),
            targets: View::of(&self.tokens),
            first_sample: 0,
            num_targets: self.microbatch.rows() as u64,
            documents: None,
            preferences: None,
        };
        let mode = Mode::Train { seed: 0, step: 0, loss_scale: LossScale::ONE };
        let mut loss = [0.0_f64];
        tokens.copy_tokens(device, block.io(), (0, &microbatch))?;
        let (microbatch, loss) = tokens.staged(&microbatch, &mut loss);
        let mut ctx = Context {
            device,
            microbatch: &microbatch,
            mode,
            scratch: &mut scratch,
            collectives: &mut SingleRank,
            loss,
            pairs: ViewMut::of::<f64>(&mut []),
        };
        let (params, input) = (params.view()?, input.view());
        let mut fastest = u64::MAX;
        for _ in 0..NUM_ROUNDS {
            device.synchronize()?;
            let start = world.clock().now();
            let mut saved = Saved { kept: kept.view_mut()?, rebuilt: rebuilt.view_mut()? };
            block.forward(&mut ctx, params, input, output.view_mut(), saved.reborrow())?;
            let mut d_stream = d_stream.view_mut();
            device.copy(first_d_stream.view(), d_stream.reborrow())?;
            let grads = Grads::new(grads.view_mut()?, &all);
            block.backward(&mut ctx, params, input, saved, d_stream, grads)?;
            device.synchronize()?;
            fastest = fastest.min(world.clock().since(start).as_nanos() as u64);
        }
        Ok(fastest)
    }

    /// Normal numbers for rows of this width, on the device.
    fn normal(&self, compute: &Compute, name: &str, width: usize) -> DeviceResult<Buffer> {
        let (device, len) = (compute.device(), self.rows * width);
        let mut numbers = vec![0.0; len];
        random::fill_normal(compute, Key::new(0, name), 0, 1.0, &mut numbers);
        let mut wide = device.allocate(Dtype::F32, len)?;
        device.copy(View::of(&numbers), wide.view_mut())?;
        let mut rounded = device.allocate(self.dtype, len)?;
        copy_rounded(device, wide.view(), rounded.view_mut())?;
        Ok(rounded)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stages::{Stages, costs};
    use crate::testing::MODEL;
    use lockstep_comm::{Comm, Options};
    use lockstep_config::Model;
    use lockstep_mesh::{Degrees, Mesh};
    use lockstep_model::{BlockIo, Flops, Param, SavedLen, describe};
    use lockstep_platform::real;
    use lockstep_schedule::pipeline::Kind;
    use lockstep_tensor::Isa;

    /// A block whose extra work does not show in its FLOPs.
    struct Slow(Box<dyn Block>);

    impl Block for Slow {
        fn name(&self) -> &str {
            self.0.name()
        }

        fn params(&self) -> &[Param] {
            self.0.params()
        }

        fn io(&self) -> BlockIo {
            self.0.io()
        }

        fn saved_len(&self, shape: MicrobatchShape) -> SavedLen {
            // One more saved element makes it a kind of its own.
            let SavedLen { kept, rebuilt } = self.0.saved_len(shape);
            SavedLen { kept: kept + 1, rebuilt }
        }

        fn scratch_len(&self, shape: MicrobatchShape) -> usize {
            self.0.scratch_len(shape)
        }

        fn flops_per_token(&self, num_tokens: usize) -> Flops {
            self.0.flops_per_token(num_tokens)
        }

        fn forward(
            &self,
            ctx: &mut Context<'_>,
            params: View<'_>,
            input_tc: View<'_>,
            mut output_tc: ViewMut<'_>,
            saved: Saved<'_>,
        ) -> DeviceResult<()> {
            let mut saved = without_last(saved);
            for _ in 0..300 {
                let output_tc = output_tc.reborrow();
                self.0.forward(ctx, params, input_tc, output_tc, saved.reborrow())?;
            }
            Ok(())
        }

        fn backward(
            &self,
            ctx: &mut Context<'_>,
            params: View<'_>,
            input_tc: View<'_>,
            saved: Saved<'_>,
            d_stream_tc: ViewMut<'_>,
            grads: Grads<'_>,
        ) -> DeviceResult<()> {
            self.0.backward(ctx, params, input_tc, without_last(saved), d_stream_tc, grads)
        }
    }

    fn without_last(Saved { kept, rebuilt }: Saved<'_>) -> Saved<'_> {
        let len = kept.len() - 1;
        Saved { kept: kept.range(0..len), rebuilt }
    }

    #[test]
    fn a_slow_block_gets_its_own_stage_on_all_ranks() {
        let world = real();
        let microbatch = MicrobatchShape { sequences: 1, tokens: MODEL.context };
        let blueprint = || {
            let mut blueprint = describe(&Model { layers: 6, ..MODEL });
            let block = blueprint.blocks.remove(2);
            blueprint.blocks.insert(2, Box::new(Slow(block)));
            blueprint
        };
        let ends = Comm::threads(&world, 3, &Options::default()).unwrap();
        let costs_of = |end: &Comm| {
            let mesh = Mesh::new(Degrees { pipeline: 3, ..Degrees::ONE }).unwrap();
            let groups = Groups::new(end, mesh).unwrap();
            let cpu = Compute::single(Isa::detect());
            block_costs(&blueprint(), microbatch, &cpu, &groups, &world).unwrap()
        };
        let found: Vec<_> = std::thread::scope(|scope| {
            let ask = |end| scope.spawn(move || costs_of(end));
            let workers: Vec<_> = ends.iter().map(ask).collect();
            workers.into_iter().map(|worker| worker.join().unwrap()).collect()
        });
        assert!(found.iter().all(|costs| *costs == found[0] && costs.iter().all(|cost| *cost > 0)));
        let cuts = |costs: &[u64]| Stages::balanced(costs, 3, 3, Kind::OneFOneB).cuts().to_vec();
        assert_eq!(cuts(&found[0]), [2, 3], "{found:?}");
        assert_ne!(cuts(&costs(&blueprint())), [2, 3], "FLOPs alone cut elsewhere");
    }
}

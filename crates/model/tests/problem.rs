//! Blocks of small problems: every gradient against differences of the loss, and independence of
//! samples.

use lockstep_config::{
    Activation, Family, GptNeox, LlamaVariant, Lora, LossScale, Model, Mup, Problem,
};
use lockstep_model::{
    Blueprint, Context, Grads, IGNORE, Microbatch, MicrobatchShape, Mode, Saved, Scratch,
    SingleRank, describe, init,
};
use lockstep_tensor::device::{View, ViewMut};
use lockstep_tensor::random::{self, Key};
use lockstep_tensor::{Cpu, Isa};

const TRAIN: Mode = Mode::Train { seed: 1, step: 0, loss_scale: LossScale::ONE };

fn model(family: Family) -> Model {
    Model {
        family,
        layers: 2,
        width: 7,
        heads: 1,
        kv_heads: 1,
        ffn: 1,
        vocab: 1,
        context: 1,
        tied: false,
        dropout: 0.0,
        norm_eps: 1e-5,
        rope_theta: 1e4,
        variant: LlamaVariant::PLAIN,
        gpt_neox: GptNeox::PYTHIA,
        mup: Mup::OFF,
        lora: Lora::NONE,
        problem: Problem {
            samples: 50,
            held_out: 10,
            seed: 3,
            dim: 9,
            condition: 30.0,
            noise: 0.4,
            l2: 0.05,
            // A smooth activation, so that differences converge.
            activation: Activation::Gelu,
            density: 1.0,
        },
    }
}

const FAMILIES: [Family; 4] = [Family::Mlp, Family::Quadratic, Family::Ridge, Family::Logistic];

/// Saved values that are all kept.
fn saved(kept: &mut [f32]) -> Saved<'_> {
    Saved { kept: ViewMut::of(kept), rebuilt: ViewMut::of::<f32>(&mut []) }
}

/// A problem with generic weights.
struct Setup {
    cpu: Cpu,
    blueprint: Blueprint,
    params: Vec<Vec<f32>>,
}

impl Setup {
    fn new(family: Family) -> Self {
        let (cpu, blueprint) = (Cpu::single(Isa::detect()), describe(&model(family)));
        let mut params: Vec<_> =
            blueprint.blocks.iter().map(|block| vec![0.0; block.num_params()]).collect();
        for (block, param) in blueprint.params() {
            let values = &mut params[block][param.range()];
            init::fill(&cpu, 1, param, 0, values);
            if values.iter().all(|value| *value == 0.0) {
                random::fill_normal(&cpu, Key::new(5, &param.name), 0, 0.5, values);
            }
        }
        Self { cpu, blueprint, params }
    }

    /// Sum of the losses of a micro-batch, and the gradients.
    fn run(&self, inputs: &[u32], targets: &[u32], num_targets: u64) -> (f64, Vec<Vec<f32>>) {
        let shape = MicrobatchShape { sequences: inputs.len(), tokens: 1 };
        let (inputs, targets) = (View::of(inputs), View::of(targets));
        let microbatch = Microbatch {
            shape,
            inputs,
            targets,
            first_sample: 0,
            num_targets,
            documents: None,
            preferences: None,
        };
        let blocks = &self.blueprint.blocks;
        let mut scratch = Scratch::new(&self.cpu, self.blueprint.scratch_len(shape))
            .expect("the CPU runs every operation");
        let mut loss = [0.0];
        let mut ctx = Context {
            device: &self.cpu,
            microbatch: &microbatch,
            mode: TRAIN,
            scratch: &mut scratch,
            collectives: &mut SingleRank,
            loss: ViewMut::of(&mut loss),
            pairs: ViewMut::of::<f64>(&mut []),
        };
        let mut kept: Vec<_> = blocks.iter().map(|b| vec![0.0; b.saved_len(shape).kept]).collect();
        let mut streams = vec![Vec::new()];
        for (index, block) in blocks.iter().enumerate() {
            let mut output = vec![f32::NAN; shape.rows() * block.io().output_width()];
            let saved = saved(&mut kept[index]);
            let (params, input) = (View::of(&self.params[index]), View::of(&streams[index]));
            block
                .forward(&mut ctx, params, input, ViewMut::of(&mut output), saved)
                .expect("the CPU runs every operation");
            streams.push(output);
        }
        let mut grads: Vec<_> = self.params.iter().map(|params| vec![0.0; params.len()]).collect();
        let mut d_stream = vec![f32::NAN; shape.rows() * self.blueprint.max_width()];
        for (index, block) in blocks.iter().enumerate().rev() {
            let saved = saved(&mut kept[index]);
            let d_stream = &mut d_stream[..shape.rows() * block.io().max_width()];
            let (params, input) = (View::of(&self.params[index]), View::of(&streams[index]));
            let all = 0..params.len();
            let grads = Grads::new(ViewMut::of(&mut grads[index]), std::slice::from_ref(&all));
            let d_stream = ViewMut::of(d_stream);
            block
                .backward(&mut ctx, params, input, saved, d_stream, grads)
                .expect("the CPU runs every operation");
        }
        (loss[0], grads)
    }

    fn mean_loss(&self, inputs: &[u32]) -> f64 {
        let targets = vec![0; inputs.len()];
        self.run(inputs, &targets, inputs.len() as u64).0 / inputs.len() as f64
    }
}

#[test]
fn every_gradient_agrees_with_differences_of_the_loss() {
    let samples: Vec<u32> = (10..21).collect();
    for family in FAMILIES {
        let mut setup = Setup::new(family);
        let (_, grads) = setup.run(&samples, &vec![0; samples.len()], samples.len() as u64);
        let places: Vec<_> =
            setup.blueprint.params().map(|(b, p)| (b, p.range(), p.name.clone())).collect();
        for (block, range, name) in places {
            for number in 0..3 {
                let key = Key::new(number, &name);
                let direction: Vec<f64> =
                    (0..range.len()).map(|i| f64::from(key.normal(i as u64))).collect();
                let length = direction.iter().map(|v| v * v).sum::<f64>().sqrt();
                let grad = &grads[block][range.clone()];
                let analytic: f64 = grad
                    .iter()
                    .zip(&direction)
                    .map(|(grad, direction)| f64::from(*grad) * direction / length)
                    .sum();
                let original = setup.params[block].clone();
                let mut loss_at = |reach: f64| {
                    for (index, direction) in range.clone().zip(&direction) {
                        let moved = f64::from(original[index]) + reach * direction / length;
                        setup.params[block][index] = moved as f32;
                    }
                    setup.mean_loss(&samples)
                };
                let (inner, outer) =
                    (loss_at(0.01) - loss_at(-0.01), loss_at(0.02) - loss_at(-0.02));
                let numeric = (8.0 * inner - outer) / 0.12;
                setup.params[block] = original;
                let error = (analytic - numeric).abs();
                assert!(error < 2e-5 + 1e-3 * analytic.abs(), "{name}: {analytic} but {numeric}");
            }
        }
    }
}

#[test]
fn ignored_samples_change_nothing_and_gradients_are_those_of_single_samples() {
    for family in FAMILIES {
        let setup = Setup::new(family);
        let (loss, together) = setup.run(&[4, 9, 11], &[0, 0, 0], 3);
        for filling in [0, 30] {
            let found = setup.run(&[4, 9, 11, filling], &[0, 0, 0, IGNORE], 3);
            assert_eq!(found, (loss, together.clone()), "{family}");
        }
        let mut sums: Vec<_> =
            together.iter().map(|grads| vec![0.0; grads.len()]).collect::<Vec<Vec<f64>>>();
        let mut sum_of_losses = 0.0;
        for sample in [4, 9, 11] {
            let (loss, grads) = setup.run(&[sample], &[0], 3);
            sum_of_losses += loss;
            for (sums, grads) in sums.iter_mut().zip(&grads) {
                sums.iter_mut().zip(grads).for_each(|(sum, grad)| *sum += f64::from(*grad));
            }
        }
        assert!((loss - sum_of_losses).abs() < 1e-6);
        for (sum, grad) in sums.iter().flatten().zip(together.iter().flatten()) {
            let error = (sum - f64::from(*grad)).abs();
            assert!(error < 1e-5 * (1.0 + sum.abs()), "{family}: {sum} and {grad}");
        }
    }
}

#[test]
fn samples_differ_so_gradients_are_stochastic() {
    for family in FAMILIES {
        let setup = Setup::new(family);
        let [one, other] = [4, 9].map(|sample| setup.run(&[sample], &[0], 1).1);
        assert_ne!(one, other, "{family}");
    }
}

//! A step of a tiny model from lanes to weights.

use lockstep_config::{Family, LrSchedule, Model, Optim, OptimName};
use lockstep_model::{Lane, LaneShape, Recompute, describe};
use lockstep_optim::{GlobalNorm, Optimizer, Update};
use lockstep_parallel::{Footprint, Leaves, Replica, ReplicaPlan};
use lockstep_tensor::random::Key;
use lockstep_tensor::{Cpu, Isa};

const MODEL: Model = Model {
    family: Family::Llama,
    layers: 2,
    width: 16,
    heads: 4,
    kv_heads: 2,
    ffn: 24,
    vocab: 19,
    context: 9,
    tied: false,
    dropout: 0.0,
    norm_eps: 1e-5,
    rope_theta: 10000.0,
};

const LANE: LaneShape = LaneShape { sequences: 2, tokens: 9 };

fn plan(num_leaves: usize, lanes_per_leaf: usize) -> ReplicaPlan {
    let leaves = Leaves { num_leaves, lanes_per_leaf };
    ReplicaPlan { lane: LANE, leaves, recompute: Recompute::None }
}

/// Tokens of the lanes of one step, and what follows each.
struct Batch {
    tokens: Vec<u32>,
    num_lanes: usize,
}

impl Batch {
    fn new(num_lanes: usize) -> Self {
        let key = Key::new(2, "tokens");
        let draw = |i: usize| (key.uniform_f64(i as u64) * MODEL.vocab as f64) as u32;
        Self { tokens: (0..=num_lanes * LANE.rows()).map(draw).collect(), num_lanes }
    }

    fn lane(&self, index: usize) -> Lane<'_> {
        let rows = index * LANE.rows()..(index + 1) * LANE.rows();
        Lane {
            shape: LANE,
            inputs: &self.tokens[rows.clone()],
            targets: &self.tokens[rows.start + 1..=rows.end],
            first_sample: (index * LANE.sequences) as u64,
            num_targets: (self.num_lanes * LANE.rows()) as u64,
        }
    }

    /// Runs all lanes as one step and returns the mean loss.
    fn run(&self, cpu: &Cpu, replica: &mut Replica, step: u64) -> f64 {
        let losses = (0..self.num_lanes).map(|i| replica.run_lane(cpu, 1, step, &self.lane(i)));
        let loss = losses.sum::<f64>() / (self.num_lanes * LANE.rows()) as f64;
        replica.finish_reduce(cpu);
        loss
    }
}

fn settings(name: OptimName) -> Optim {
    Optim {
        name,
        lr: 0.01,
        weight_decay: 0.1,
        clip: 1.0,
        warmup_steps: 0,
        schedule: LrSchedule::Constant,
        final_lr_fraction: 1.0,
        beta1: 0.9,
        beta2: 0.95,
        eps: 1e-8,
        momentum: 0.9,
    }
}

/// Trains for some steps and returns the losses and the bits of all weights.
fn train(cpu: &Cpu, model: &Model, plan: ReplicaPlan, num_steps: u64) -> (Vec<f64>, Vec<u32>) {
    let batch = Batch::new(plan.leaves.num_leaves * plan.leaves.lanes_per_leaf);
    let mut replica = Replica::materialize(describe(model), 1, cpu, plan);
    let slots = replica.slots();
    let mut norm = GlobalNorm::new(&slots);
    let mut optimizer = Optimizer::new(&settings(OptimName::AdamW), &slots);
    let mut losses = Vec::new();
    for step in 0..num_steps {
        losses.push(batch.run(cpu, &mut replica, step));
        let clip = norm.clip(cpu, replica.grads(), 1.0);
        let update = Update { count: step + 1, lr: 0.01, grad_scale: clip.scale };
        replica.step(cpu, &mut optimizer, &update);
    }
    let weights = replica.named_params().flat_map(|(_, values)| bits(values)).collect();
    (losses, weights)
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Equality to the bit; a failure names the first element that differs.
fn assert_same(left: &[f32], right: &[f32], what: &str) {
    assert_eq!(left.len(), right.len(), "{what}");
    let differs = left.iter().zip(right).position(|(l, r)| l.to_bits() != r.to_bits());
    assert!(differs.is_none(), "{what}: element {differs:?} differs");
}

fn sum(left: &[f32], right: &[f32]) -> Vec<f32> {
    left.iter().zip(right).map(|(left, right)| left + right).collect()
}

/// The gradient of every parameter, one after the other.
fn all_grads(replica: &Replica) -> Vec<f32> {
    replica.named_grads().flat_map(|(_, grad)| grad.iter().copied()).collect()
}

#[test]
fn gradients_of_a_step_are_its_leaves_added_by_the_tree() {
    let cpu = Cpu::single(Isa::detect());
    let batch = Batch::new(8);
    for lanes_per_leaf in [1, 2, 4] {
        let num_leaves = 8 / lanes_per_leaf;
        let mut one_leaf = Replica::materialize(describe(&MODEL), 1, &cpu, plan(1, lanes_per_leaf));
        let mut sums: Vec<Vec<f32>> = (0..num_leaves)
            .map(|leaf| {
                for lane in 0..lanes_per_leaf {
                    // Without dropout, a lane's place in the batch does not matter.
                    let first_sample = (lane * LANE.sequences) as u64;
                    let lane = batch.lane(leaf * lanes_per_leaf + lane);
                    one_leaf.run_lane(&cpu, 1, 0, &Lane { first_sample, ..lane });
                }
                one_leaf.finish_reduce(&cpu);
                all_grads(&one_leaf)
            })
            .collect();
        while sums.len() > 1 {
            let pairs = sums.chunks(2).map(|pair| sum(&pair[0], &pair[1]));
            sums = pairs.collect();
        }
        let plan = plan(num_leaves, lanes_per_leaf);
        let mut replica = Replica::materialize(describe(&MODEL), 1, &cpu, plan);
        batch.run(&cpu, &mut replica, 0);
        assert_same(&all_grads(&replica), &sums[0], &format!("{lanes_per_leaf} lanes a leaf"));
    }
}

#[test]
fn a_tied_table_gets_the_gradients_of_both_uses_added_once() {
    let cpu = Cpu::single(Isa::detect());
    let batch = Batch::new(4);
    let mut untied = Replica::materialize(describe(&MODEL), 1, &cpu, plan(2, 2));
    let tied_model = Model { tied: true, ..MODEL };
    let mut tied = Replica::materialize(describe(&tied_model), 1, &cpu, plan(2, 2));
    let table = "model.embed_tokens.weight";
    let values = untied.param_mut(table).expect("the table is there").to_vec();
    untied.param_mut("lm_head.weight").expect("the head is untied").copy_from_slice(&values);
    assert!(tied.param_mut("lm_head.weight").is_none(), "a mirror is not saved");

    let losses = [&mut untied, &mut tied].map(|replica| batch.run(&cpu, replica, 0).to_bits());
    assert_eq!(losses[0], losses[1]);
    let grad = |replica: &Replica, name: &str| {
        let (_, grad) = replica.named_grads().find(|(p, _)| p.name == name).expect("a parameter");
        grad.to_vec()
    };
    let expected = sum(&grad(&untied, table), &grad(&untied, "lm_head.weight"));
    assert_same(&grad(&tied, table), &expected, table);

    let mut optimizer = Optimizer::new(&settings(OptimName::Momentum), &tied.slots());
    let before = tied.params()[3].clone();
    tied.step(&cpu, &mut optimizer, &Update { count: 1, lr: 0.1, grad_scale: 1.0 });
    let (first, last) = (&tied.params()[0], &tied.params()[3]);
    assert_same(first, &last[MODEL.width..], "the mirror follows its owner");
    assert!(bits(&before) != bits(last), "it moved");
}

#[test]
fn training_learns_and_does_not_depend_on_threads_or_recomputation() {
    #[expect(clippy::disallowed_methods, reason = "a test needs no simulated world")]
    let two_threads = Cpu::new(Isa::detect(), 2, &|_, run| {
        std::thread::spawn(run);
    });
    let one_thread = Cpu::single(Isa::detect());
    for family in [Family::Llama, Family::Gpt2] {
        let model = Model { family, kv_heads: 4, tied: true, dropout: 0.1, ..MODEL };
        let expected = train(&one_thread, &model, plan(4, 1), 30);
        let (first, last) = (expected.0[0], expected.0[29]);
        assert!(last < 0.8 * first, "{family}: {first} fell only to {last}");
        let threaded = train(&two_threads, &model, plan(4, 1), 30);
        assert!(threaded == expected, "{family}: two threads");
        for recompute in [Recompute::Selective, Recompute::Full] {
            let plan = ReplicaPlan { recompute, ..plan(4, 1) };
            assert!(train(&one_thread, &model, plan, 30) == expected, "{family}: {recompute:?}");
        }
    }
}

#[test]
fn evaluation_leaves_gradients_alone_and_shows_its_logits() {
    let cpu = Cpu::single(Isa::detect());
    let batch = Batch::new(2);
    let mut replica = Replica::materialize(describe(&MODEL), 1, &cpu, plan(2, 1));
    batch.run(&cpu, &mut replica, 0);
    let grads = all_grads(&replica);
    let loss = replica.evaluate_lane(&cpu, &batch.lane(1));
    assert_same(&all_grads(&replica), &grads, "gradients");

    let by_hand: f64 = replica
        .logits()
        .chunks(MODEL.vocab)
        .zip(batch.lane(1).targets)
        .map(|(logits, target)| {
            let sum: f64 = logits.iter().map(|l| f64::from(*l).exp()).sum();
            sum.ln() - f64::from(logits[*target as usize])
        })
        .sum();
    assert!((loss - by_hand).abs() < 1e-4, "{loss} but {by_hand}");
}

#[test]
fn memory_is_what_was_counted_before() {
    let cpu = Cpu::single(Isa::detect());
    for tied in [false, true] {
        for recompute in [Recompute::None, Recompute::Selective, Recompute::Full] {
            for rule in [OptimName::Sgd, OptimName::Momentum, OptimName::AdamW] {
                let plan = ReplicaPlan { recompute, ..plan(4, 1) };
                let blueprint = describe(&Model { tied, ..MODEL });
                let counted = Footprint::plan(&blueprint, &plan, rule);
                let replica = Replica::materialize(blueprint, 1, &cpu, plan);
                let optimizer = Optimizer::new(&settings(rule), &replica.slots());
                assert_eq!(replica.footprint(&optimizer), counted, "{tied} {recompute:?} {rule}");
            }
        }
    }
}

#[test]
fn recomputation_holds_less() {
    let activations = [Recompute::None, Recompute::Selective, Recompute::Full].map(|recompute| {
        let plan = ReplicaPlan { recompute, ..plan(1, 1) };
        let model = Model { layers: 6, ..MODEL };
        Footprint::plan(&describe(&model), &plan, OptimName::Sgd).activations
    });
    assert!(activations.is_sorted_by(|more, less| more > less), "{activations:?}");
}

#[test]
fn a_value_that_is_not_finite_is_named() {
    let cpu = Cpu::single(Isa::detect());
    let mut replica = Replica::materialize(describe(&MODEL), 1, &cpu, plan(1, 1));
    assert_eq!(replica.first_non_finite_param(&cpu), None);
    let name = "model.layers.1.mlp.up_proj.weight";
    replica.param_mut(name).expect("a parameter")[7] = f32::NAN;
    let found = replica.first_non_finite_param(&cpu).expect("a bad value");
    assert_eq!((&found.name[..], found.element), (name, 7));
    Batch::new(1).run(&cpu, &mut replica, 0);
    assert!(replica.first_non_finite_grad(&cpu).is_some());
}

#[test]
#[should_panic(expected = "lanes come in ascending order")]
fn a_lane_out_of_order_is_a_bug() {
    let cpu = Cpu::single(Isa::detect());
    let mut replica = Replica::materialize(describe(&MODEL), 1, &cpu, plan(2, 1));
    replica.run_lane(&cpu, 1, 0, &Batch::new(2).lane(1));
}

#[test]
#[should_panic(expected = "every lane was run")]
fn a_step_with_a_lane_missing_is_a_bug() {
    let cpu = Cpu::single(Isa::detect());
    let mut replica = Replica::materialize(describe(&MODEL), 1, &cpu, plan(2, 1));
    replica.run_lane(&cpu, 1, 0, &Batch::new(2).lane(0));
    replica.finish_reduce(&cpu);
}

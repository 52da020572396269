//! A step of a tiny model from micro-batches to weights, on one rank.

use crate::support::{
    Batch, MICROBATCH, Named, RECOMPUTE, SMALL, Worker, all_params, alone, assert_same, bits,
    on_ranks, settings, train_step,
};
use lockstep_comm::CommError;
use lockstep_config::{Family, Group, Model, OptimName};
use lockstep_mesh::{Degrees, Mesh};
use lockstep_model::{IGNORE, Microbatch, MicrobatchShape, Recompute, describe};
use lockstep_optim::{Clip, Optimizer, Phases, Slot, Update};
use lockstep_parallel::{Footprint, Leaves, RecomputePlan, Replica, ReplicaPlan};
use lockstep_tensor::device::{Compute, View};
use lockstep_tensor::{Cpu, Isa};

fn plan(num_leaves: usize, microbatches_per_leaf: usize) -> ReplicaPlan {
    ReplicaPlan::single_rank(MICROBATCH, Leaves { num_leaves, microbatches_per_leaf })
}

fn replica(worker: &Worker<'_>, model: &Model, plan: ReplicaPlan) -> Replica {
    worker.replica(model, plan).expect("a group of one cannot fail")
}

/// Runs all micro-batches as one step and returns the mean loss.
fn run(worker: &Worker<'_>, replica: &mut Replica, batch: &Batch) -> f64 {
    let sum = replica
        .run_microbatches(&worker.cpu, 1, 0, &|microbatch| batch.microbatch(microbatch))
        .expect("alone");
    replica.finish_reduce(&worker.cpu).expect("alone");
    sum / batch.num_targets() as f64
}

/// Trains for some steps on one batch and returns the losses and all weights.
fn train(
    worker: &Worker<'_>,
    model: &Model,
    plan: ReplicaPlan,
    num_steps: u64,
) -> (Vec<f64>, Vec<Named>) {
    let batch = Batch::new(model, plan.leaves.num_leaves * plan.leaves.microbatches_per_leaf, 2);
    let mut replica = replica(worker, model, plan);
    let mut optimizer = Optimizer::new(&settings(OptimName::AdamW), &replica.slots());
    let mut step =
        |step| train_step(worker, &mut replica, &mut optimizer, &batch, step).expect("alone").0;
    let losses = (0..num_steps).map(&mut step).collect();
    (losses, all_params(&mut replica).expect("alone"))
}

fn sum(left: &[f32], right: &[f32]) -> Vec<f32> {
    left.iter().zip(right).map(|(left, right)| left + right).collect()
}

/// Gradients of all parameters, concatenated.
fn all_grads(replica: &Replica) -> Vec<f32> {
    replica.own_grads().flat_map(|(_, grad)| grad.iter().copied()).collect()
}

/// Replaces one parameter by the result of `change`.
fn set_param(replica: &mut Replica, name: &str, change: impl Fn(&[Named]) -> Vec<f32>) {
    let mut params = all_params(replica).expect("alone");
    let values = change(&params);
    params.iter_mut().find(|(other, _)| other == name).expect("a parameter").1 = values;
    let find = |name: &str| params.iter().find(|(other, _)| other == name);
    let restored = replica
        .restore(|param| Ok::<_, CommError>(find(&param.name).expect("a parameter").1.as_slice()));
    restored.expect("alone");
}

#[test]
fn gradients_of_a_step_are_its_leaves_added_by_the_tree() {
    let batch = Batch::new(&SMALL, 8, 2);
    alone(|worker| {
        for microbatches_per_leaf in [1, 2, 4] {
            let num_leaves = 8 / microbatches_per_leaf;
            let mut one_leaf = replica(worker, &SMALL, plan(1, microbatches_per_leaf));
            let grads_of_leaf = |leaf: usize| {
                let microbatch = |microbatch: usize| {
                    // Without dropout, a micro-batch's place in the batch does not matter.
                    let first_sample = (microbatch * MICROBATCH.sequences) as u64;
                    Microbatch {
                        first_sample,
                        ..batch.microbatch(leaf * microbatches_per_leaf + microbatch)
                    }
                };
                one_leaf.run_microbatches(&worker.cpu, 1, 0, &microbatch).expect("alone");
                one_leaf.finish_reduce(&worker.cpu).expect("alone");
                all_grads(&one_leaf)
            };
            let mut sums: Vec<Vec<f32>> = (0..num_leaves).map(grads_of_leaf).collect();
            while sums.len() > 1 {
                sums = sums.chunks(2).map(|pair| sum(&pair[0], &pair[1])).collect();
            }
            let mut replica = replica(worker, &SMALL, plan(num_leaves, microbatches_per_leaf));
            run(worker, &mut replica, &batch);
            assert_same(
                &all_grads(&replica),
                &sums[0],
                &format!("{microbatches_per_leaf} micro-batches a leaf"),
            );
        }
    });
}

#[test]
fn a_tied_table_gets_the_gradients_of_both_uses_added_once() {
    let batch = Batch::new(&SMALL, 4, 2);
    let (table, head) = ("model.embed_tokens.weight", "lm_head.weight");
    let value = |params: &[Named], name: &str| {
        params.iter().find(|(other, _)| other == name).map(|(_, values)| values.clone())
    };
    let grad = |replica: &Replica, name: &str| {
        let (_, grad) = replica.own_grads().find(|(slot, _)| slot.name == name).expect("a slot");
        grad.to_vec()
    };
    alone(|worker| {
        let mut untied = replica(worker, &SMALL, plan(2, 2));
        let mut tied = replica(worker, &Model { tied: true, ..SMALL }, plan(2, 2));
        set_param(&mut untied, head, |params| value(params, table).expect("the table is there"));
        let before = all_params(&mut tied).expect("alone");
        assert!(value(&before, head).is_none(), "a mirror is not saved");

        let losses = [&mut untied, &mut tied].map(|r| run(worker, r, &batch).to_bits());
        assert_eq!(losses[0], losses[1]);
        let expected = sum(&grad(&untied, table), &grad(&untied, head));
        assert_same(&grad(&tied, table), &expected, table);

        // The mirror follows its owner: an untied head with the stepped table gives the same loss.
        let mut optimizer = Optimizer::new(&settings(OptimName::Momentum), &tied.slots());
        let update = Update { count: 1, lr: 0.1, clip: Clip::uniform(1.0) };
        tied.step(&worker.cpu, &mut optimizer, &update).expect("alone");
        let after = all_params(&mut tied).expect("alone");
        let moved = value(&after, table).expect("the table is there");
        assert!(
            value(&before, table).expect("the table was there").as_slice() != moved,
            "it moved"
        );
        let stepped = |name: &str| value(&after, if name == head { table } else { name });
        let names: Vec<_> = all_params(&mut untied).expect("alone");
        for (name, _) in &names {
            set_param(&mut untied, name, |_| stepped(name).expect("both have it"));
        }
        let losses = [&mut untied, &mut tied].map(|replica| {
            let microbatch = |microbatch: usize| batch.microbatch(microbatch);
            replica.evaluate(&worker.cpu, 4, &microbatch).expect("alone").to_bits()
        });
        assert_eq!(losses[0], losses[1]);
    });
}

#[test]
fn training_learns_and_does_not_depend_on_threads_or_recomputation() {
    #[expect(clippy::disallowed_methods, reason = "a test needs no simulated world")]
    let two_threads = || {
        Compute::from(Cpu::new(Isa::detect(), 2, &|_, run| {
            std::thread::spawn(run);
        }))
    };
    for family in [Family::Llama, Family::Gpt2] {
        let model = Model { family, kv_heads: 4, tied: true, dropout: 0.1, ..SMALL };
        let train = |plan: ReplicaPlan| alone(|worker| train(worker, &model, plan.clone(), 30));
        let (losses, weights) = train(plan(4, 1));
        assert!(losses[29] < 0.8 * losses[0], "{family}: {losses:?}");
        let threaded = alone(|worker| {
            let worker = Worker { cpu: two_threads(), ..*worker };
            self::train(&worker, &model, plan(4, 1), 30)
        });
        assert!(threaded == (losses.clone(), weights.clone()), "{family}: two threads");
        for recompute in RECOMPUTE {
            let plan = ReplicaPlan { recompute, ..plan(4, 1) };
            assert!(train(plan) == (losses.clone(), weights.clone()), "{family}: {recompute:?}");
        }
    }
}

#[test]
fn evaluation_keeps_gradients_and_returns_logits() {
    let batch = Batch::new(&SMALL, 2, 2);
    alone(|worker| {
        let mut replica = replica(worker, &SMALL, plan(2, 1));
        run(worker, &mut replica, &batch);
        let grads = all_grads(&replica);
        let loss = replica.evaluate(&worker.cpu, 1, &|_| batch.microbatch(1)).expect("alone");
        assert_same(&all_grads(&replica), &grads, "gradients");

        let by_hand: f64 = replica
            .logits(&worker.cpu)
            .expect("host memory")
            .chunks(SMALL.vocab)
            .zip(batch.microbatch(1).targets.as_slice::<u32>().expect("host memory"))
            .map(|(logits, target)| {
                let sum: f64 = logits.iter().map(|l| f64::from(*l).exp()).sum();
                sum.ln() - f64::from(logits[*target as usize])
            })
            .sum();
        assert!((loss - by_hand).abs() < 1e-4, "{loss} but {by_hand}");
    });
}

#[test]
fn losses_of_sequences_have_the_same_bits_in_every_cut_and_layout() {
    const LONG: MicrobatchShape = MicrobatchShape { sequences: 2, tokens: 64 };
    let model = Model { context: 64, ..SMALL };
    let tokens: Vec<u32> = (0..=5 * 16).map(|i| (i * 31 % model.vocab) as u32).collect();
    let evaluate = |worker: &Worker<'_>, plan: ReplicaPlan, num_tokens: usize| {
        let mut replica = replica(worker, &model, ReplicaPlan { microbatch: LONG, ..plan });
        let shape = replica.evaluation_shape(num_tokens);
        assert_eq!((shape.rows(), shape.tokens >= num_tokens), (LONG.rows(), true));
        assert_eq!(replica.num_evaluated_sequences(shape), shape.sequences);
        // Five sequences of 16 tokens, whose first target does not count.
        let mut inputs = vec![0; 5_usize.next_multiple_of(shape.sequences) * shape.tokens];
        let mut targets = vec![IGNORE; inputs.len()];
        for sequence in 0..5 {
            let (at, from) = (sequence * shape.tokens, sequence * 16);
            inputs[at..at + 16].copy_from_slice(&tokens[from..from + 16]);
            targets[at + 1..at + 16].copy_from_slice(&tokens[from + 2..from + 17]);
        }
        let microbatch = |index: usize| {
            let rows = index * shape.rows()..(index + 1) * shape.rows();
            Microbatch {
                shape,
                inputs: View::of(&inputs[rows.clone()]),
                targets: View::of(&targets[rows]),
                first_sample: 0,
                num_targets: 1,
                documents: None,
                preferences: None,
            }
        };
        let num = inputs.len() / shape.rows();
        let losses = replica.sequence_losses(&worker.cpu, num, &microbatch).expect("it runs");
        if shape == LONG {
            let total = replica.evaluate(&worker.cpu, num, &microbatch).expect("it runs");
            let sum: f64 = losses.iter().sum();
            assert!((total - sum).abs() < 1e-3 * total, "{total} is not {sum}");
        }
        losses[..5].iter().map(|loss| loss.to_bits()).collect::<Vec<_>>()
    };
    let expected = alone(|worker| evaluate(worker, plan(2, 1), 64));
    assert!(expected.iter().all(|bits| f64::from_bits(*bits) > 1.0), "losses of 15 targets");
    assert_eq!(alone(|worker| evaluate(worker, plan(2, 1), 16)), expected, "short sequences");
    for zero in [0, 3] {
        let mesh = Mesh::new(Degrees { data: 2, ..Degrees::ONE }).expect("two replicas");
        let of_two = ReplicaPlan { zero, mesh, shares: vec![1, 1], ..plan(2, 1) };
        let found = on_ranks(2, |worker| evaluate(worker, of_two.clone(), 16));
        assert_eq!(found, [expected.clone(), expected.clone()], "two workers, ZeRO {zero}");
    }
}

#[test]
fn recomputation_holds_less() {
    let activations = [Recompute::None, Recompute::Selective, Recompute::Full].map(|recompute| {
        let plan = ReplicaPlan { recompute: recompute.into(), ..plan(1, 1) };
        let model = Model { layers: 6, ..SMALL };
        Footprint::plan(&describe(&model), &plan, OptimName::Sgd, 0).activations
    });
    assert!(activations.is_sorted_by(|more, less| more > less), "{activations:?}");
    let of_some = |every| {
        let recompute = RecomputePlan { policy: Recompute::Full, every };
        let model = Model { layers: 6, ..SMALL };
        let plan = ReplicaPlan { recompute, ..plan(1, 1) };
        Footprint::plan(&describe(&model), &plan, OptimName::Sgd, 0).activations
    };
    let by_every = [of_some(1), of_some(2), of_some(6)];
    assert!(by_every.is_sorted_by(|less, more| less < more), "{by_every:?}");
}

#[test]
#[should_panic(expected = "every micro-batch was run")]
fn a_sum_without_microbatches_is_a_bug() {
    alone(|worker| {
        let mut replica = replica(worker, &SMALL, plan(2, 1));
        replica.finish_reduce(&worker.cpu).expect("alone");
    });
}

#[test]
fn weights_start_from_the_seed_and_the_name() {
    let params = |seed: u64| {
        alone(|worker| {
            let Worker { cpu, comm, world } = worker;
            let blueprint = describe(&SMALL);
            let replica = Replica::materialize(blueprint, seed, cpu, plan(1, 1), comm, world);
            all_params(&mut replica.expect("alone")).expect("alone")
        })
    };
    let (one, repeated, other) = (params(1), params(1), params(2));
    for (((name, one), (_, repeated)), (_, other)) in one.iter().zip(&repeated).zip(&other) {
        assert_same(one, repeated, name);
        // Norms start as ones.
        let is_drawn = bits(one).iter().any(|value| *value != 1.0_f32.to_bits());
        assert_eq!(bits(one) != bits(other), is_drawn, "{name}");
    }
}

#[test]
fn freezing_does_not_change_the_other_gradients() {
    let mut rule = settings(OptimName::Sgd);
    rule.groups = ["*embed_tokens*", "*.wte.*", "*.wpe.*", "*.layers.1.*", "*.h.1.*", "*.bias"]
        .map(|pattern| Group {
            pattern: pattern.to_owned(),
            lr_scale: 1.0,
            weight_decay: None,
            clip: None,
            frozen: true,
            freeze_after: None,
            unfreeze_at: None,
        })
        .to_vec();
    for family in [Family::Llama, Family::Gpt2] {
        for tied in [false, true] {
            let model = Model { family, kv_heads: SMALL.heads, layers: 3, tied, ..SMALL };
            let blueprint = describe(&model);
            let names: Vec<_> = blueprint.owned_params().map(|(_, p)| p.name.as_str()).collect();
            let phases = Phases::new(&rule, &names);
            let grads = |phases: Phases| {
                alone(|worker| {
                    let plan = ReplicaPlan { phases: phases.clone(), ..plan(2, 1) };
                    let mut replica = replica(worker, &model, plan);
                    run(worker, &mut replica, &Batch::new(&model, 2, 5));
                    let named = |(slot, grad): (Slot, &[f32])| (slot.name, bits(grad));
                    replica.own_grads().map(named).collect::<Vec<_>>()
                })
            };
            let (all, some) = (grads(Phases::default()), grads(phases.clone()));
            let trained: Vec<_> =
                all.into_iter().filter(|(name, _)| !phases.is_frozen(0, name)).collect();
            assert!(!some.is_empty() && some.len() < names.len());
            assert!(some == trained, "{family}, tied: {tied}");
        }
    }
}

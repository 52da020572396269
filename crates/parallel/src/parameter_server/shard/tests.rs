//! Pushes in every order, under every consistency model.

use super::*;
use crate::parameter_server::policy::Bound;
use crate::robust_aggregation::Aggregator;
use lockstep_config::{LateGradients, Recipe, Sources, StalenessWeight, resolve};
use lockstep_optim::Slot;
use lockstep_tensor::Isa;
use std::collections::BTreeMap;

fn shard(num_workers: usize, consistency: Consistency, staleness: u64) -> Shard {
    let sets = ["optim.name=sgd", "optim.weight_decay=0"].map(str::to_owned).to_vec();
    let recipe: Recipe = resolve(&Sources { sets, ..Sources::default() }).expect("sound");
    let slot = Slot {
        block: 0,
        name: "x".to_owned(),
        tensor: 0,
        piece: 0,
        range: 0..1,
        grads: 0..1,
        first: 0,
        shape: [1, 1],
        decay: false,
        matrix: None,
    };
    let bound = Bound {
        staleness,
        last: 0,
        rule: StalenessRule::Fixed,
        constant: 1.0,
        curvature: 1.0,
        num_steps: 100,
        beyond: StaleGradients::Block,
    };
    let policy = Policy {
        consistency,
        bound,
        weight: StalenessWeight::None,
        decay: 0.9,
        delay: 0,
        quorum: num_workers,
        overdue: LateGradients::Next,
        aggregator: Aggregator::Mean,
        switch: None,
    };
    Shard::new(policy, num_workers, &[1], Optimizer::new(&recipe.optim, &[slot]), |_| 1.0)
}

fn push(shard: &mut Shard, worker: usize, grads: Option<Parts>) -> u64 {
    let number = shard.taken[worker] + 1;
    assert!(!shard.has_taken(worker, number), "it is new");
    let push = Push { worker, number, step: shard.done[worker] };
    let staleness = shard.push(&Cpu::single(Isa::detect()), push, grads);
    assert!(shard.has_taken(worker, number), "it is taken once");
    staleness
}

/// Applied, discarded and skipped pushes of each worker.
fn outcomes(shard: &Shard) -> Vec<[u64; 3]> {
    let of = |counts: &PushCounts| [counts.num_applied(), counts.discarded, counts.skipped];
    shard.push_counts().iter().map(of).collect()
}

fn gradient(value: f32) -> Parts {
    vec![vec![value]]
}

#[test]
fn one_update_waits_for_all_workers_in_lockstep() {
    let mut shard = shard(2, Consistency::Sync, 0);
    assert!(shard.may_read(0) && !shard.may_read(1));
    shard.read(0);
    shard.read(1);
    assert_eq!(push(&mut shard, 1, Some(gradient(2.0))), 0);
    assert!(!shard.may_read(1), "worker 0 has not pushed");
    assert_eq!(push(&mut shard, 0, Some(gradient(1.0))), 0);
    assert!(shard.may_read(1));
    assert_eq!(shard.params_mut()[0], [-3.0]);
    // A step that one worker skips is skipped by all.
    shard.read(0);
    shard.read(1);
    push(&mut shard, 0, Some(gradient(1.0)));
    push(&mut shard, 1, None);
    assert_eq!((shard.version(), shard.num_updates(), shard.params_mut()[0][0]), (2, 1, -3.0));
    assert_eq!(outcomes(&shard), [[1, 1, 0], [1, 0, 1]], "only the first step changed parameters");
}

#[test]
fn no_gradient_is_staler_than_the_bound_whichever_worker_is_slow() {
    for num_workers in 1..=4 {
        for bound in 0..6 {
            let mut shard = shard(num_workers, Consistency::Bounded, bound);
            let mut most = 0;
            // The last worker pushes only when no other can proceed.
            for turn in 0..200 {
                let mut has_moved = false;
                for worker in 0..num_workers {
                    let is_slow = worker + 1 == num_workers && num_workers > 1;
                    if shard.reads[worker].is_none() {
                        if shard.may_read(0) {
                            shard.read(worker);
                            has_moved = true;
                        }
                    } else if !is_slow {
                        most = most.max(push(&mut shard, worker, Some(gradient(0.0))));
                        has_moved = true;
                    }
                }
                if !has_moved {
                    let slow = num_workers - 1;
                    assert!(shard.reads[slow].is_some(), "{bound}: all wait in turn {turn}");
                    most = most.max(push(&mut shard, slow, Some(gradient(0.0))));
                }
            }
            assert!(most <= bound, "{num_workers} workers: {most} of {bound}");
            assert!(num_workers == 1 || most == bound, "{num_workers}: {most} of {bound}");
        }
    }
}

#[test]
fn a_delayed_reader_gets_an_older_version() {
    let mut shard = shard(1, Consistency::Async, 0);
    shard.policy.delay = 2;
    let mut read = Vec::new();
    for _ in 0..5 {
        let version = shard.read(0);
        read.push((version, shard.read_by(0)[0][0]));
        push(&mut shard, 0, Some(gradient(-1.0)));
    }
    assert_eq!(read, [(0, 0.0), (0, 0.0), (0, 0.0), (1, 1.0), (2, 2.0)]);
}

#[test]
fn an_elastic_update_rescales_to_all_workers() {
    let cpu = Cpu::single(Isa::detect());
    for (overdue, expected) in [(LateGradients::Discard, -3.0), (LateGradients::Next, -4.5)] {
        let mut shard = shard(3, Consistency::Elastic, 0);
        (shard.policy.quorum, shard.policy.overdue) = (2, overdue);
        (0..3).for_each(|worker| _ = shard.read(worker));
        push(&mut shard, 0, Some(gradient(1.0)));
        assert!(!shard.may_read(1) && shard.is_open());
        push(&mut shard, 1, Some(gradient(1.0)));
        // Two of three are rescaled to three.
        assert_eq!((shard.version(), shard.params_mut()[0][0]), (1, -3.0));
        assert_eq!(push(&mut shard, 2, Some(gradient(1.0))), 1, "it is overdue");
        let is_discarded = u64::from(overdue == LateGradients::Discard);
        assert_eq!(outcomes(&shard)[2], [0, is_discarded, 0], "it has not changed parameters");
        assert!(!shard.is_open(), "an overdue gradient closes no update");
        // No other arrives in time; with the overdue gradient there are two of three, or one.
        shard.read(0);
        push(&mut shard, 0, Some(gradient(0.0)));
        shard.close(&cpu);
        assert_eq!((shard.version(), shard.params_mut()[0][0]), (2, expected));
        assert_eq!(outcomes(&shard)[2], [1 - is_discarded, is_discarded, 0]);
    }
}

#[test]
fn gradients_beyond_the_bound_are_discarded_where_readers_do_not_block() {
    let mut shard = shard(3, Consistency::Bounded, 1);
    shard.policy.bound.beyond = StaleGradients::Discard;
    (0..3).for_each(|worker| _ = shard.read(worker));
    let found = [0, 1, 2].map(|worker| push(&mut shard, worker, Some(gradient(1.0))));
    assert_eq!(found, [0, 1, 2]);
    assert_eq!(outcomes(&shard), [[1, 0, 0], [1, 0, 0], [0, 1, 0]]);
    assert_eq!((shard.version(), shard.params_mut()[0][0]), (2, -2.0));
    // A skipped step is no gradient, however stale.
    (0..3).for_each(|worker| _ = shard.read(worker));
    push(&mut shard, 0, None);
    for worker in [1, 2] {
        push(&mut shard, worker, Some(gradient(1.0)));
    }
    assert_eq!(outcomes(&shard), [[1, 0, 1], [2, 0, 0], [0, 2, 0]]);
    assert_eq!(shard.push_counts()[1].applied, BTreeMap::from([(1, 2)]));
}

#[test]
fn workers_at_the_switch_wait_for_all_and_continue_synchronously() {
    let mut shard = shard(2, Consistency::Async, 0);
    shard.policy.switch = Some(2);
    for _ in 0..2 {
        assert!(shard.may_read(shard.done[0]));
        shard.read(0);
        push(&mut shard, 0, Some(gradient(1.0)));
    }
    assert!(!shard.may_read(2), "worker 1 has done nothing yet");
    for _ in 0..2 {
        shard.read(1);
        push(&mut shard, 1, Some(gradient(1.0)));
    }
    assert_eq!((shard.version(), shard.params_mut()[0][0]), (4, -4.0));
    assert!(shard.may_read(2));
    (0..2).for_each(|worker| _ = shard.read(worker));
    push(&mut shard, 0, Some(gradient(1.0)));
    assert!(!shard.may_read(3));
    assert_eq!(shard.version(), 4, "one of two workers is no update in synchronous mode");
    assert_eq!(push(&mut shard, 1, Some(gradient(1.0))), 0);
    assert_eq!((shard.version(), shard.params_mut()[0][0]), (5, -6.0));
    assert!(shard.may_read(3));
}

#[test]
fn after_an_alarm_no_worker_begins_another_asynchronous_step() {
    let mut shard = shard(2, Consistency::Async, 0);
    for _ in 0..3 {
        shard.read(0);
        push(&mut shard, 0, Some(gradient(0.0)));
    }
    shard.switch_to_sync();
    assert_eq!(shard.switch(), Some(4), "worker 0 may be computing step 3");
    shard.switch_to_sync();
    assert_eq!(shard.switch(), Some(4));
    assert!(shard.may_read(3) && !shard.may_read(4));
}

/// Descends on a quadratic at 0.9 over its curvature with four workers that push in turn and read
/// again as soon as they may; returns the last parameter.
fn descend(rule: StalenessRule) -> f32 {
    let mut shard = shard(4, Consistency::Bounded, 7);
    shard.policy.bound.rule = rule;
    shard.params_mut()[0][0] = 1.0;
    let mut read = [0.0; 4];
    for turn in 0..4000 {
        for (worker, read) in read.iter_mut().enumerate() {
            if shard.reads[worker].is_none() && shard.may_read(0) {
                shard.read(worker);
                *read = shard.params_mut()[0][0];
            }
        }
        let worker = turn % 4;
        if shard.reads[worker].is_some() {
            push(&mut shard, worker, Some(gradient(0.9 * read[worker])));
        }
    }
    shard.params_mut()[0][0]
}

#[test]
fn lowering_the_bound_on_oscillation_prevents_divergence() {
    // Gradients that have missed 3 updates diverge beyond 0.445; those that have missed one, beyond
    // 1.
    let fixed = descend(StalenessRule::Fixed);
    assert!(fixed.is_nan() || fixed.abs() > 1e6, "{fixed}");
    let lowered = descend(StalenessRule::Oscillation);
    assert!(lowered.abs() < 1e-3, "{lowered}");
}

#[test]
fn a_version_is_kept_until_its_last_part_is_pulled() {
    let mut shard = shard(2, Consistency::Async, 0);
    shard.read(0);
    shard.begin_parts(0);
    for _ in 0..3 {
        shard.read(1);
        push(&mut shard, 1, Some(gradient(1.0)));
    }
    assert_eq!((shard.read_part(0, 0).to_vec(), shard.older.len()), (vec![0.0], 3));
    assert_eq!(push(&mut shard, 0, Some(gradient(1.0))), 3, "it is as stale as the pull");
    assert_eq!((shard.params_mut()[0][0], shard.older.len()), (-4.0, 0), "no version is kept");
}

//! Requests of a worker whose step is skipped while servers hold parts of its push.

use super::super::policy::{Bound, Policy};
use super::*;
use crate::robust_aggregation::Aggregator;
use lockstep_comm::Options;
use lockstep_config::{
    Consistency, LateGradients, Recipe, Sources, StaleGradients, StalenessRule, StalenessWeight,
    resolve,
};
use lockstep_optim::{Optimizer, Slot};
use lockstep_tensor::Isa;

/// Shard of two parts of one element, stepped by plain SGD at a learning rate of one.
fn shard(consistency: Consistency) -> Shard {
    let sets = ["optim.name=sgd", "optim.weight_decay=0"].map(str::to_owned).to_vec();
    let recipe: Recipe = resolve(&Sources { sets, ..Sources::default() }).expect("sound");
    let slots = [0, 1].map(|block| Slot {
        block,
        name: format!("part.{block}"),
        tensor: block,
        piece: 0,
        range: 0..1,
        grads: 0..1,
        first: 0,
        shape: [1, 1],
        decay: false,
        matrix: None,
    });
    let bound = Bound {
        staleness: 0,
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
        quorum: 1,
        overdue: LateGradients::Next,
        aggregator: Aggregator::Mean,
        switch: None,
    };
    Shard::new(policy, 1, &[1, 1], Optimizer::new(&recipe.optim, &slots), |_| 1.0)
}

/// Worker 0 of two servers, by their ranks.
struct Worker<'a> {
    comm: &'a Comm,
    server: usize,
}

impl Worker<'_> {
    fn send(&self, kind: RequestKind, step: u64, number: u64) {
        let request = Request { step, number, ..Request::of(kind, 0) };
        self.comm.send(&request.fields(), self.server, Tag::Request as u64).unwrap();
    }

    fn reply(&self) {
        let mut fields = [0_u64; Reply::NUM_FIELDS];
        self.comm.recv(&mut fields, self.server, Tag::Reply as u64).unwrap();
    }

    fn push_part(&self, step: u64, part: u64, grad: f32) {
        self.send(RequestKind::PushPart, step, part);
        self.comm.send_each(&[(self.server, &[grad][..])], Tag::Gradients as u64).unwrap();
    }

    fn pull(&self, step: u64) {
        self.send(RequestKind::PullByParts, step, 0);
        self.reply();
    }

    /// Ends a step with a push or a skip.
    fn end(&self, kind: RequestKind, step: u64) {
        self.send(kind, step, step + 1);
    }
}

#[test]
fn a_skipped_step_drops_the_parts_that_servers_hold() {
    for consistency in [Consistency::Sync, Consistency::Async] {
        let world = lockstep_platform::real();
        let ends = Comm::threads(&world, 3, &Options::default()).unwrap();
        let serve_alone = |comm: &Comm| {
            let (cpu, mut shard) = (Cpu::single(Isa::detect()), shard(consistency));
            let options = ServeOptions {
                num_workers: 1,
                role: Role::Sole,
                close_after: None,
                num_row_replicas: 0,
            };
            serve(comm, &cpu, &world, &mut shard, options).unwrap();
            let counts = &shard.push_counts()[0];
            let outcomes = [counts.num_applied(), counts.discarded, counts.skipped];
            (shard.params_mut().concat(), outcomes)
        };
        let found = std::thread::scope(|scope| {
            let serve_alone = &serve_alone;
            let [worker, servers @ ..] = &ends[..] else { unreachable!("three ranks") };
            let servers: Vec<_> =
                servers.iter().map(|comm| scope.spawn(move || serve_alone(comm))).collect();
            let workers = [1, 2].map(|server| Worker { comm: worker, server });
            // Backward has sent one server all parts, and the other its last one, when the norm of
            // the gradients turns out not to be finite.
            for to in &workers {
                to.pull(0);
                to.push_part(0, 1, f32::NAN);
            }
            workers[0].push_part(0, 0, 7.0);
            for to in &workers {
                to.end(RequestKind::Skip, 0);
                to.reply();
            }
            // A step in parts, and one that is pushed whole: neither finds parts of the first.
            for to in &workers {
                to.pull(1);
                to.push_part(1, 1, 2.0);
                to.push_part(1, 0, 1.0);
                to.end(RequestKind::Push, 1);
                to.reply();
                to.pull(2);
                to.end(RequestKind::Push, 2);
                for grad in [1.0_f32, 2.0] {
                    worker.send(&[grad], to.server, Tag::Gradients as u64).unwrap();
                }
                to.reply();
                to.send(RequestKind::Leave, 0, 0);
                to.reply();
            }
            servers.into_iter().map(|server| server.join().unwrap()).collect::<Vec<_>>()
        });
        let expected = || (vec![-2.0, -4.0], [2, 0, 1]);
        assert_eq!(found, [expected(), expected()], "{consistency:?}");
    }
}

//! Every layout's programs are proven, and no task of them can be left out.

use super::{RankPlan, ServerStep, StepKind};
use crate::from_recipe::{blueprint_of_rank, plan_at};
use crate::strategies::programs as programs_of;
use lockstep_config::{Recipe, Sources, SyncMode, resolve};
use lockstep_schedule::step::{
    Contents, MessageKind, Program, Queue, ServerCall, Task, TaskId, TaskOp, verify,
};

fn recipe(sets: &[&str]) -> Recipe {
    let small = [
        "model.layers=2",
        "model.width=16",
        "model.heads=2",
        "model.kv_heads=2",
        "model.ffn=32",
        "model.vocab=256",
        "model.context=8",
        "train.batch=8",
        "train.microbatch=1",
        "numerics.invariant_up_to=8",
        "parallel.bucket_bytes=4096",
    ];
    let sets = small.iter().chain(sets).map(|set| (*set).to_owned()).collect();
    resolve(&Sources { sets, ..Sources::default() }).unwrap_or_else(|errors| panic!("{errors:?}"))
}

fn programs(sets: &[&str]) -> Vec<Program> {
    let recipe = recipe(sets);
    let blueprint = blueprint_of_rank(&recipe, 0);
    let plan = plan_at(&recipe, &blueprint, 0);
    let of_rank = |rank| RankPlan::new(&plan, &blueprint, rank).training(&StepKind::reduce());
    (0..plan.mesh.num_ranks()).map(of_rank).collect()
}

const LAYOUTS: &[&[&str]] = &[
    &[],
    &["run.workers=2"],
    &["run.workers=3"],
    &["run.workers=2", "precision.wire=bf16"],
    &["run.workers=2", "parallel.zero=1"],
    &["run.workers=3", "parallel.zero=1", "precision.wire=bf16"],
    &["run.workers=2", "parallel.zero=2"],
    &["run.workers=3", "parallel.zero=2"],
    &["run.workers=3", "parallel.zero=3"],
    &["run.workers=3", "parallel.zero=3", "precision.wire=bf16"],
    &["run.workers=2", "parallel.zero=2", "train.batch=32", "model.tied=true"],
    &["run.workers=2", "parallel.zero=3", "parallel.recompute=full"],
    &["run.workers=2", "parallel.pipeline=2"],
    &["run.workers=2", "parallel.pipeline=2", "model.tied=true"],
    &["run.workers=4", "parallel.pipeline=2", "model.tied=true", "parallel.zero=1"],
    &["run.workers=2", "parallel.pipeline=2", "parallel.schedule=gpipe"],
    &["run.workers=2", "parallel.pipeline=2", "parallel.schedule=zero-bubble"],
    &[
        "run.workers=2",
        "parallel.pipeline=2",
        "parallel.schedule=interleaved",
        "parallel.virtual_stages=2",
    ],
    &["run.workers=4", "parallel.pipeline=2", "parallel.zero=3"],
    &["run.workers=2", "parallel.tensor=2", "numerics.invariant_tensor_up_to=2"],
    &[
        "run.workers=2",
        "parallel.tensor=2",
        "numerics.invariant_tensor_up_to=2",
        "parallel.sequence=true",
        "parallel.recompute=selective",
    ],
    &["run.workers=4", "parallel.tensor=2", "parallel.zero=1"],
    &["optim.groups=[{match = \"model.embed*\", frozen = true}]", "run.workers=2"],
    &["optim.name=lamb", "run.workers=2"],
    &["optim.name=lamb", "parallel.zero=1"],
    &["optim.name=lamb", "run.workers=3", "parallel.zero=3"],
    &["optim.name=lars", "run.workers=2", "parallel.tensor=2"],
    &["optim.name=muon", "run.workers=2"],
    &["optim.name=muon", "parallel.zero=1", "numerics.invariant_tensor_up_to=2"],
    &["optim.name=muon", "run.workers=3", "parallel.zero=2"],
    &["optim.name=muon", "run.workers=4", "parallel.tensor=2", "parallel.zero=3"],
    &["optim.name=muon", "run.workers=4", "parallel.pipeline=2", "parallel.zero=1"],
];

#[test]
fn every_layout_is_proven() {
    for layout in LAYOUTS {
        let programs = programs(layout);
        if let Err(error) = verify(&programs) {
            panic!("{layout:?}: {error}\n{}", programs[0]);
        }
    }
}

#[test]
fn no_task_can_be_left_out() {
    for layout in LAYOUTS {
        assert_every_task_is_needed(&format!("{layout:?}"), &programs(layout));
    }
}

#[test]
fn equal_plans_give_equal_programs() {
    for layout in LAYOUTS {
        assert_eq!(programs(layout), programs(layout));
    }
}

#[test]
fn every_step_of_other_strategies_is_proven_and_needs_every_task() {
    let rounds = ["sync.mode=local-sgd", "sync.local_steps=3"];
    let strategies: &[&[&str]] = &[
        &rounds,
        &[&rounds[..], &["sync.group_workers=2", "sync.inner_rounds=2"]].concat(),
        &[&rounds[..], &["sync.fragments=3", "sync.inner_rounds=2"]].concat(),
        &["sync.mode=gossip"],
        &["sync.mode=gossip", "sync.graph=one-peer"],
        &["sync.mode=gossip", "sync.graph=random-regular"],
        &["compress.method=top-k"],
        &["compress.method=top-k", "compress.group_workers=2", "model.tied=true"],
        &["compress.method=power-sgd", "compress.warmup_steps=2"],
    ];
    for strategy in strategies {
        let recipe = recipe(&[&["run.workers=4", "train.steps=12"], *strategy].concat());
        let blueprint = blueprint_of_rank(&recipe, 0);
        let plan = plan_at(&recipe, &blueprint, 0);
        let mut communicates = false;
        for step in 0..12 {
            let kind = StepKind::at(&recipe, step);
            let of_rank = |rank| RankPlan::new(&plan, &blueprint, rank).training_of(&recipe, &kind);
            let programs: Vec<Program> = (0..4).map(of_rank).collect();
            if let Err(error) = verify(&programs) {
                panic!("{strategy:?}, step {step}: {error}\n{}", programs[0]);
            }
            let base = RankPlan::new(&plan, &blueprint, 0).training(&StepKind::local());
            assert_every_task_is_needed(&format!("{strategy:?}, step {step}"), &programs);
            communicates |= programs[0].tasks.len() > base.tasks.len();
        }
        assert!(communicates, "{strategy:?}");
    }
}

#[test]
fn compressed_buckets_leave_during_backward_and_no_task_can_be_left_out() {
    let top_k = ["compress.method=top-k", "compress.ratio=0.05"];
    let variants: &[&[&str]] = &[
        &top_k,
        &[&top_k[..], &["model.tied=true"]].concat(),
        &[&top_k[..], &["compress.group_workers=2"]].concat(),
        &["compress.method=power-sgd", "compress.rank=1"],
    ];
    for variant in variants {
        let recipe = recipe(&[&["run.workers=4", "parallel.bucket_bytes=1"], *variant].concat());
        let blueprint = blueprint_of_rank(&recipe, 0);
        let plan = plan_at(&recipe, &blueprint, 0);
        let programs = programs_of(&recipe, &plan, &blueprint, &StepKind::at(&recipe, 0));
        let is_backward = |op: &TaskOp| matches!(op, TaskOp::Backward(_));
        for program in &programs {
            let is_call =
                |op: &TaskOp| matches!(op, TaskOp::Exchange { .. } | TaskOp::ReduceInGroup { .. });
            let first = program.position(is_call).unwrap_or_else(|| panic!("{program}"));
            let later = program.iter().filter(|(id, task)| *id > first && is_backward(&task.op));
            let later: Vec<TaskId> = later.map(|(id, _)| id).collect();
            assert!(!later.is_empty(), "{variant:?}: {program}");
            for id in later {
                assert!(!program.after(id).contains(&first), "backward does not wait: {program}");
            }
        }
        assert_every_task_is_needed(&format!("{variant:?}"), &programs);
    }
}

/// Checks that programs without any one task of them are refused.
fn assert_every_task_is_needed(name: &str, programs: &[Program]) {
    for (rank, program) in programs.iter().enumerate() {
        for (id, task) in program.iter() {
            let is_alone = program.call(task).is_some_and(|(_, group)| group.ranks.len() == 1);
            if task.op == TaskOp::Barrier && is_alone {
                // It orders nothing.
                continue;
            }
            let mut mutant = programs.to_vec();
            mutant[rank] = program.without(id);
            let (op, number) = (task.op, id.0);
            assert!(verify(&mutant).is_err(), "{name}: rank {rank} without {op} ({number})");
        }
    }
}

/// Programs of workers and servers in a step.
fn served(sets: &[&str], step: ServerStep) -> Vec<Program> {
    let recipe = recipe(&[&["sync.mode=parameter-server"], sets].concat());
    let blueprint = blueprint_of_rank(&recipe, 0);
    let plan = plan_at(&recipe, &blueprint, 0);
    let is_joint = step.is_joint || StepKind::at(&recipe, 1).servers.is_some_and(|it| it.is_joint);
    let kind = StepKind { servers: Some(ServerStep { is_joint, ..step }), ..StepKind::default() };
    programs_of(&recipe, &plan, &blueprint, &kind)
}

const SYNC: &[&str] = &["run.workers=2", "sync.consistency=sync", "sync.servers=2"];

const SERVED: &[&[&str]] = &[
    &["run.workers=1", "sync.consistency=sync"],
    SYNC,
    &["run.workers=3", "sync.servers=3", "optim.clip=0", "parallel.bucket_bytes=1"],
    &["run.workers=2", "sync.servers=2", "parallel.overlap=false"],
    &["run.workers=2", "sync.consistency=sync", "sync.servers=2", "model.tied=true"],
    &["run.workers=2", "sync.consistency=sync", "sync.servers=2", "sync.replicas=1"],
    &["run.workers=2", "sync.consistency=sync", "sync.servers=2", "optim.clip=0"],
    &["run.workers=4", "sync.consistency=sync", "sync.servers=2", "sync.group_workers=2"],
    &["run.workers=4", "sync.group_workers=2", "sync.sparse_rows=true", "sync.replicas=1"],
    &["run.workers=2", "sync.servers=2", "compress.method=sign", "optim.clip=0"],
    &["run.workers=2", "sync.consistency=bounded", "sync.servers=3"],
    &["run.workers=3", "sync.consistency=elastic", "sync.servers=2"],
    &["run.workers=3", "sync.servers=3", "sync.sparse_rows=true", "sync.replicated_rows=5"],
];

#[test]
fn programs_of_workers_and_servers_are_proven_together_and_need_every_task() {
    for sets in SERVED {
        for (loads, saves, has_least_rows) in
            [(true, false, false), (false, true, true), (false, false, false)]
        {
            let step = ServerStep { loads, saves, has_least_rows, ..ServerStep::default() };
            let programs = served(sets, step);
            if let Err(error) = verify(&programs) {
                let text: String = programs.iter().map(Program::to_string).collect();
                panic!("{sets:?}, {step:?}: {error}\n{text}");
            }
            assert_every_task_is_needed(&format!("{sets:?}, {step:?}"), &programs);
        }
    }
}

#[test]
fn passes_wait_for_their_buckets_only_and_the_last_layers_are_pushed_first() {
    let sets = [SYNC, &["optim.clip=0", "parallel.bucket_bytes=1"]].concat();
    let program = &served(&sets, ServerStep::default())[0];
    let at = |program: &Program, found: &dyn Fn(&TaskOp) -> bool| {
        program.position(found).unwrap_or_else(|| panic!("{program}"))
    };
    let values = |program: &Program, call: ServerCall, part: u32| {
        at(program, &|op| {
            let (TaskOp::Recv(message) | TaskOp::Send(message)) = op else { return false };
            message.kind == MessageKind::Values { call, part }
        })
    };
    let last = program.buffers.iter().filter_map(|buffer| match buffer.contents {
        Contents::Params { bucket } => Some(bucket),
        _ => None,
    });
    let last = last.max().expect("there are buckets");
    let forward = at(program, &|op| matches!(op, TaskOp::Forward(_)));
    let pull = |bucket| values(program, ServerCall::Pull, bucket);
    assert!(pull(0) < pull(last) && pull(last) < forward, "{program}");
    assert!(program.after(forward).contains(&pull(0)), "{program}");
    assert!(!program.after(forward).contains(&pull(last)), "{program}");
    let last_backward = program.iter().filter(|(_, t)| matches!(t.op, TaskOp::Backward(_))).last();
    let (last_backward, _) = last_backward.expect("there is a backward pass");
    let push = |program: &Program, bucket| values(program, ServerCall::Push, bucket);
    assert!(push(program, last) < last_backward && last_backward < push(program, 0), "{program}");
    // The norm of all gradients comes before the first push where it scales them.
    let clipped = &served(SYNC, ServerStep::default())[0];
    assert!(at(clipped, &|op| *op == TaskOp::Clip) < push(clipped, 0), "{clipped}");
    // In the serial order all weights are there before the first pass.
    let serial = &served(&[&sets[..], &["parallel.overlap=false"]].concat(), ServerStep::default());
    let is_part = |op: &TaskOp| {
        let (TaskOp::Recv(message) | TaskOp::Send(message)) = op else { return false };
        matches!(
            message.kind,
            MessageKind::Request(ServerCall::PullPart(_) | ServerCall::PushPart(_))
        )
    };
    assert!(serial.iter().all(|program| program.position(is_part).is_none()));
    assert!(program.position(is_part).is_some());
}

#[test]
fn rounds_of_clients_threads_and_cutoffs_are_proven_and_need_every_task() {
    let clients = ["federated.clients=9", "federated.sampled=4", "optim.name=sgd"];
    let federated = [&["sync.mode=federated"], &clients[..]].concat();
    let strategies: &[&[&str]] = &[
        &["run.workers=1", "sync.local_steps=3"],
        &["run.workers=4", "sync.local_steps=3", "federated.dropout=0.4"],
        &["run.workers=3", "sync.local_steps=2", "federated.method=scaffold"],
        &["run.workers=3", "sync.local_steps=1", "federated.secure_aggregation=true"],
    ];
    let strategies = strategies.iter().map(|sets| [&federated[..], *sets].concat());
    let alone = ["optim.name=sgd", "optim.weight_decay=0", "run.workers=1"];
    let hogwild = [&["sync.mode=hogwild"], &alone[..]].concat();
    let others: &[&[&str]] = &[
        &[&hogwild[..], &["sync.threads=4"]].concat(),
        &[&hogwild[..], &["sync.threads=2", "model.tied=true"]].concat(),
        &["run.workers=3", "sync.stragglers=backup"],
        &["run.workers=2", "sync.stragglers=timeout", "model.tied=true"],
        &["run.workers=4", "sync.stragglers=drop-slowest"],
    ];
    for sets in strategies.chain(others.iter().map(|sets| sets.to_vec())) {
        let recipe = recipe(&[&["train.steps=6"], &sets[..]].concat());
        let blueprint = blueprint_of_rank(&recipe, 0);
        let plan = plan_at(&recipe, &blueprint, 0);
        for step in 0..6 {
            let kind = StepKind::at(&recipe, step);
            let programs = programs_of(&recipe, &plan, &blueprint, &kind);
            if let Err(error) = verify(&programs) {
                let text: String = programs.iter().map(Program::to_string).collect();
                panic!("{sets:?}, step {step}: {error}\n{text}");
            }
            assert_every_task_is_needed(&format!("{sets:?}, step {step}"), &programs);
            let is_link = |task: &Task| matches!(task.queue, Queue::Link(_));
            let has_link = programs.iter().any(|program| program.tasks.iter().any(is_link));
            assert_eq!(has_link, recipe.sync.mode != SyncMode::Hogwild, "{sets:?}");
        }
    }
}

#[test]
fn no_gradient_is_reduced_before_the_cutoff() {
    let recipe = recipe(&["run.workers=3", "sync.stragglers=backup"]);
    let blueprint = blueprint_of_rank(&recipe, 0);
    let plan = plan_at(&recipe, &blueprint, 0);
    let programs = programs_of(&recipe, &plan, &blueprint, &StepKind::at(&recipe, 0));
    let cutoff = programs[1].position(|op| *op == TaskOp::Cutoff).expect("it has one");
    let first = programs[1].position(|op| matches!(op, TaskOp::Reduce { .. }));
    assert!(cutoff < first.expect("it reduces"), "{}", programs[1]);
}

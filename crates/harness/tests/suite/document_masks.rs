//! Packed documents with a mask: the losses and gradients of the documents one by one, and the bits
//! of one worker under every layout.

use lockstep_comm::Comm;
use lockstep_config::{Dtype, Recipe};
use lockstep_data::{IGNORE, PAD};
use lockstep_harness::recipes::{GPT2, LLAMA, Small};
use lockstep_harness::tolerance::Tolerance;
use lockstep_harness::traffic::assert_traffic_and_memory_as_predicted;
use lockstep_harness::{Outcome, Runs};
use lockstep_model::{Microbatch, MicrobatchShape, describe};
use lockstep_parallel::{Leaves, Replica, ReplicaPlan, from_recipe};
use lockstep_tensor::Isa;
use lockstep_tensor::device::{Compute, View};

const MASKED: &str = "data.documents=masked";

/// Sequences of tokens, and the documents of each if attention is masked by them.
struct Sequences {
    inputs: Vec<u32>,
    targets: Vec<u32>,
    documents: Option<Vec<u32>>,
}

/// Documents of these lengths, one after another in one sequence.
fn packed(recipe: &Recipe, lens: &[usize]) -> Sequences {
    let token = |i: usize| (i * i * 31 + 7 * i) as u32 % recipe.model.vocab as u32;
    let num_tokens: usize = lens.iter().sum();
    let starts = lens.iter().scan(0, |end, len| Some(std::mem::replace(end, *end + len)));
    let documents = starts.zip(lens).flat_map(|(start, len)| vec![start as u32; *len]);
    Sequences {
        inputs: (0..num_tokens).map(token).collect(),
        targets: (1..=num_tokens).map(token).collect(),
        documents: Some(documents.collect()),
    }
}

/// Each document at the start of a sequence of its own, with padding.
fn one_by_one(recipe: &Recipe, whole: &Sequences, lens: &[usize]) -> Sequences {
    let (mut inputs, mut targets, mut start) = (Vec::new(), Vec::new(), 0);
    for len in lens {
        let padding = recipe.model.context - len;
        inputs.extend(&whole.inputs[start..start + len]);
        inputs.resize(inputs.len() + padding, PAD);
        targets.extend(&whole.targets[start..start + len]);
        targets.resize(targets.len() + padding, IGNORE);
        start += len;
    }
    Sequences { inputs, targets, documents: None }
}

/// Loss and gradients, a micro-batch a sequence.
fn run(recipe: &Recipe, data: &Sequences, num_targets: usize) -> (f64, Vec<(String, Vec<f32>)>) {
    let world = lockstep_platform::real();
    let (cpu, tokens) = (Compute::single(Isa::detect()), recipe.model.context);
    let arena_bytes = lockstep_trainer::arena_bytes(recipe);
    let options = lockstep_comm::Options { arena_bytes, ..lockstep_comm::Options::default() };
    let ends = Comm::threads(&world, 1, &options).expect("one worker");
    let shape = MicrobatchShape { sequences: 1, tokens };
    let microbatches_per_leaf = data.inputs.len() / tokens;
    let plan = ReplicaPlan::single_rank(shape, Leaves { num_leaves: 1, microbatches_per_leaf });
    let blueprint = describe(&recipe.model);
    let mut replica =
        Replica::materialize(blueprint, 1, &cpu, plan, &ends[0], &world).expect("a replica");
    let microbatch = |index: usize| {
        let rows = index * tokens..(index + 1) * tokens;
        Microbatch {
            shape,
            inputs: View::of(&data.inputs[rows.clone()]),
            targets: View::of(&data.targets[rows.clone()]),
            first_sample: index as u64,
            num_targets: num_targets as u64,
            documents: data.documents.as_ref().map(|documents| View::of(&documents[rows])),
            preferences: None,
        }
    };
    let loss = replica.run_microbatches(&cpu, 1, 0, &microbatch).expect("one worker");
    replica.finish_reduce(&cpu).expect("one worker");
    let grads = replica.own_grads().map(|(slot, grads)| (slot.name.clone(), grads.to_vec()));
    (loss, grads.collect())
}

#[test]
fn packed_documents_have_the_losses_and_gradients_of_documents_one_by_one() {
    for (small, sets) in [
        (LLAMA, &[][..]),
        (GPT2, &[]),
        (LLAMA, &["model.sliding_window=5"]),
        (LLAMA, &["model.context=200"]),
    ] {
        let recipe = small.with(sets);
        let context = recipe.model.context;
        let lens = [1, context / 3, 2, 1, context - context / 3 - 4];
        let both = packed(&recipe, &lens);
        let (loss, grads) = run(&recipe, &both, context);
        let alone = one_by_one(&recipe, &both, &lens);
        let (expected, expected_grads) = run(&recipe, &alone, context);
        let close = Tolerance::Close(Dtype::F32, 4 * context);
        close.compare("loss", &[loss], &[expected]).expect("the loss");
        for ((name, found), (_, expected)) in grads.iter().zip(&expected_grads) {
            close.compare(name, found, expected).unwrap_or_else(|e| panic!("{sets:?}: {e}"));
        }
        let crossing = Sequences { documents: None, ..both };
        let (other, _) = run(&recipe, &crossing, context);
        assert!((other - expected).abs() > 1e-3, "the mask changes the loss: {other}");
    }
}

const OWN: [&str; 5] = [
    "train.steps=2",
    "train.eval_batches=1",
    "numerics.invariant_tensor_up_to=2",
    "run.isolation=threads",
    "run.threads=1",
];

fn validation(outcome: &Outcome) -> Option<u64> {
    outcome.summary.validation_loss.map(f64::to_bits)
}

/// Layouts of two to four workers.
const LAYOUTS: [&[&str]; 5] = [
    &["run.workers=3", "parallel.zero=2", "parallel.recompute=full"],
    &["run.workers=2", "parallel.zero=3"],
    &["run.workers=4", "parallel.tensor=2", "parallel.pipeline=2", "parallel.sequence=true"],
    &["run.workers=2", "parallel.zero=1", "parallel.recompute=selective"],
    &["run.workers=4", "parallel.zero=0", "parallel.pipeline=2", "parallel.schedule=zero-bubble"],
];

/// Trains with these layouts and asserts the bits of one worker.
fn same_on_layouts(runs: &mut Runs, small: Small, sets: &[&str], layouts: &[&[&str]]) -> Outcome {
    let own = [&OWN[..], sets].concat();
    let alone = runs.finish(&small.with(&own));
    for layout in layouts {
        let recipe = small.with(&[&own[..], layout].concat());
        let outcome = runs.finish(&recipe);
        assert_eq!(outcome.hashes(), alone.hashes(), "{sets:?} {layout:?}");
        assert_eq!(validation(&outcome), validation(&alone), "{sets:?} {layout:?}");
        assert_traffic_and_memory_as_predicted(&recipe, &outcome);
    }
    alone
}

#[test]
fn masked_texts_give_the_bits_of_one_worker_under_every_layout() {
    let mut runs = Runs::new("document-masks");
    let lines = |n: usize| format!("{{\"text\": \"{}\"}}", "to be ".repeat(1 + n * 7 % 11));
    let text = (0..300).map(lines).collect::<Vec<_>>().join("\n");
    let path = runs.path().join("short.jsonl");
    runs.world().files().write_atomic(&path, text.as_bytes()).expect("a scratch file");
    let source = format!("data.source={}", path.display());
    let masked = same_on_layouts(&mut runs, GPT2, &[MASKED, &source], &LAYOUTS);
    let packed = runs.finish(&GPT2.with(&[&OWN[..], &[&*source]].concat()));
    assert_ne!(packed.hashes(), masked.hashes(), "the mask counts");
    assert_ne!(validation(&packed), validation(&masked), "in evaluations, too");
    let mixture = format!("data.mixture=[{{source=\"{}\", weight=1.0}}]", path.display());
    same_on_layouts(&mut runs, LLAMA, &[MASKED, &mixture], &LAYOUTS[..2]);
    let partitioned = [MASKED, &source, "data.placement=partitioned"];
    same_on_layouts(&mut runs, LLAMA, &partitioned, &LAYOUTS[1..2]);
}

#[test]
fn masked_conversations_give_the_bits_of_one_worker_under_every_layout() {
    let mut runs = Runs::new("document-masks");
    let line = |n: usize| {
        let answer = "so ".repeat(1 + n * n % 5);
        format!(r#"{{"instruction": "why {n}", "output": "{answer}"}}"#)
    };
    let template = "{% for m in messages %}{{ m.role[0] }}:{{ m.content }}\n{% endfor %}\
                    {% if add_generation_prompt %}a:{% endif %}";
    let lines = (0..60).map(line).collect::<Vec<_>>().join("\n");
    for (name, text) in [("chat.jsonl", &*lines), ("chat.jinja", template)] {
        let path = runs.path().join(name);
        runs.world().files().write_atomic(&path, text.as_bytes()).expect("a scratch file");
    }
    let path = |name: &str| runs.path().join(name).display().to_string();
    let source = format!("data.source={}", path("chat.jsonl"));
    let template = format!("finetune.chat_template={}", path("chat.jinja"));
    let sets = [MASKED, "data.format=chat", &source, &template, "data.validation=0.2"];
    same_on_layouts(&mut runs, LLAMA, &sets, &LAYOUTS[1..3]);
}

#[test]
fn accelerators_refuse_the_mask_with_a_reason() {
    let recipe = LLAMA.with(&[MASKED, "run.device=cuda"]);
    let refused = from_recipe::device_of(&recipe).expect_err("it has no kernel");
    assert!(refused.contains("the mask of data.documents = masked"), "{refused}");
}

//! Fine-tuning on conversations: the bits of one worker under every layout, with exact forecasts
//! and exact resumption.

use std::path::Path;

use lockstep_checkpoint::ElementType;
use lockstep_checkpoint::gguf::TensorType;
use lockstep_config::{DeviceChoice, Dtype, Recipe, Sources};
use lockstep_data::Corpus;
use lockstep_data::chat::Date;
use lockstep_harness::recipes::LLAMA;
use lockstep_harness::traffic::assert_traffic_and_memory_as_predicted;
use lockstep_harness::{Runs, Tolerance, golden};
use lockstep_trainer::Options;
use lockstep_trainer::conversation::chat_template;
use lockstep_trainer::conversation_evaluation::evaluate_conversations;
use lockstep_trainer::convert::{Target, convert};
use lockstep_trainer::generate::Generator;
use lockstep_trainer::pretrained::{self, Pretrained};

const TEMPLATE: &str = "{% for m in messages %}{{ m.role[0] }}:{{ m.content }}\n{% endfor %}\
                        {% if add_generation_prompt %}a:{% endif %}";

/// Conversations of one and of two turns, with answers of different lengths.
fn write_chat(runs: &Runs) {
    let line = |n: usize| {
        let (question, answer) = ("why ".repeat(1 + n % 3), "so ".repeat(1 + n * n % 7));
        match n % 2 {
            0 => format!(r#"{{"instruction": "{question}{n}", "output": "{answer}"}}"#),
            _ => format!(
                r#"{{"messages": [{{"role": "user", "content": "{n}"}},
                {{"role": "assistant", "content": "{answer}"}},
                {{"role": "user", "content": "?"}},
                {{"role": "assistant", "content": "{n}"}}]}}"#
            ),
        }
    };
    let lines: Vec<String> = (0..60).map(|n| line(n).replace('\n', " ")).collect();
    for (name, text) in [("chat.jsonl", lines.join("\n")), ("chat.jinja", TEMPLATE.to_owned())] {
        let path = runs.path().join(name);
        runs.world().files().write_atomic(&path, text.as_bytes()).expect("a scratch file");
    }
}

fn recipe(runs: &Runs, sets: &[&str]) -> Recipe {
    let path = |name: &str| runs.path().join(name).display().to_string();
    let source = format!("data.source={}", path("chat.jsonl"));
    let template = format!("finetune.chat_template={}", path("chat.jinja"));
    let own = [
        &*source,
        &template,
        "data.format=chat",
        "data.validation=0.2",
        "finetune.lora_rank=2",
        "numerics.invariant_tensor_up_to=2",
        "train.steps=3",
        "train.eval_batches=1",
        "run.isolation=threads",
        "run.threads=1",
    ];
    LLAMA.with(&[&own[..], sets].concat())
}

#[test]
fn every_layout_learns_answers_to_the_bits_of_one_worker() {
    let mut runs = Runs::new("conversations");
    write_chat(&runs);
    let alone = runs.finish(&recipe(&runs, &["run.workers=1"]));
    let layouts: &[&[&str]] = &[
        &["run.workers=4", "parallel.zero=1"],
        &["run.workers=3", "parallel.zero=2", "parallel.recompute=selective"],
        &["run.workers=2", "parallel.zero=3", "train.microbatch=2"],
        &["run.workers=4", "parallel.tensor=2", "parallel.pipeline=2", "parallel.sequence=true"],
    ];
    for layout in layouts {
        let recipe = recipe(&runs, layout);
        let outcome = runs.finish(&recipe);
        assert_eq!(outcome.hashes(), alone.hashes(), "{layout:?}");
        let [own, one] = [&outcome, &alone].map(|o| o.summary.validation_loss.map(f64::to_bits));
        assert_eq!(own, one, "{layout:?}");
        assert_traffic_and_memory_as_predicted(&recipe, &outcome);
    }
    let all = runs.finish(&recipe(&runs, &["run.workers=1", "finetune.loss=all"]));
    assert_ne!(all.hashes(), alone.hashes(), "the loss counts other tokens");
}

#[test]
fn a_run_keeps_its_template_and_its_end_token_for_chats_runs_and_exports() {
    let mut runs = Runs::new("conversations");
    write_chat(&runs);
    let files = runs.world().files();
    // A tokenizer without a template, and a template that ends turns with a special token.
    let tokenizer = runs.path().join("tokenizer");
    files.create_dir_all(&tokenizer).expect("a scratch folder");
    for name in ["tokenizer.json", "tokenizer_config.json"] {
        let path = golden::folder().join("tasks").join("model").join(name);
        let bytes = files.read(&path).expect("a golden file");
        files.write_atomic(&tokenizer.join(name), &bytes).expect("a scratch file");
    }
    let ending = TEMPLATE.replace('\n', "<s>\n");
    let path = runs.path().join("chat.jinja");
    files.write_atomic(&path, ending.as_bytes()).expect("a scratch file");
    let named = format!("data.tokenizer={}", tokenizer.display());
    let sets = ["run.workers=1", &*named, "model.vocab=270"];
    let run = runs.finish(&recipe(&runs, &sets)).dir;
    // Everything that the run needs is in its folder.
    runs.world().files().remove_dir_all(&tokenizer).expect("it is there");
    runs.world().files().write_atomic(&path, b"gone").expect("a scratch file");
    let read = |folder: &Path, name: &str| {
        let bytes = runs.world().files().read(&folder.join(name));
        String::from_utf8(bytes.expect(name)).expect("text")
    };
    assert_eq!(read(&run, "chat_template.jinja"), ending);
    let pretrained = Pretrained::open(&run, runs.world()).expect("a run");
    let template = chat_template(&pretrained, None, Date::FIXED, runs.world()).expect("its own");
    assert_eq!(template.source(), ending);
    let recipe = pretrained.recipe(runs.world()).expect("a valid recipe");
    let generator = Generator::load(&pretrained, &recipe, runs.world()).expect("its tensors");
    // The end of answers, and that of documents, which the tokenizer's configuration names.
    assert_eq!(generator.stops(), [0, 1]);
    // The next run finds the template in the folder of this one.
    let from = [
        format!("model.from={}", run.display()),
        "data.format=chat".to_owned(),
        format!("data.source={}", runs.path().join("chat.jsonl").display()),
    ];
    let sources = Sources { sets: from.into(), ..Sources::default() };
    let next = pretrained::resolve(&sources, runs.world()).expect("a valid recipe");
    let corpus = Corpus::load(&next, runs.world()).expect("it has a template");
    let counts = corpus.conversations().expect("conversations");
    assert_eq!(counts.num + counts.dropped, 60);
    let out = runs.path().join("export");
    let target = Target::HuggingFace {
        format: ElementType::F32,
        shard_bytes: u64::MAX,
        max_positions: None,
    };
    convert(&run, &out, target, runs.world(), &mut |_, _| {}).expect("it is exported");
    assert_eq!(read(&out, "chat_template.jinja"), ending);
    let json = |name: &str| -> serde_json::Value {
        serde_json::from_str(&read(&out, name)).expect("JSON")
    };
    assert_eq!(json("config.json")["eos_token_id"], 1);
    assert_eq!(json("generation_config.json")["eos_token_id"], 1);
    assert_eq!(json("tokenizer_config.json")["eos_token"], "</s>");
    assert_eq!(json("tokenizer_config.json")["chat_template"], ending);
    let gguf = runs.path().join("export.gguf");
    let target = Target::Gguf { tensor_type: TensorType::Floats(ElementType::F32) };
    convert(&out, &gguf, target, runs.world(), &mut |_, _| {}).expect("it is written");
    let bytes = runs.world().files().read(&gguf).expect("it was written");
    let has = |text: &[u8]| bytes.windows(text.len()).any(|window| window == text);
    assert!(has(b"tokenizer.chat_template") && has(ending.as_bytes()));
    assert!(has(b"tokenizer.ggml.eos_token_id"));
}

#[test]
fn an_evaluation_of_a_run_is_that_of_its_training() {
    let mut runs = Runs::new("conversations");
    write_chat(&runs);
    for documents in ["padded", "masked"] {
        let documents = format!("data.documents={documents}");
        let sets = ["run.workers=1", "train.eval_batches=100", &documents];
        let outcome = runs.finish(&recipe(&runs, &sets));
        let expected = outcome.summary.validation_loss.expect("a validation split");
        let found = evaluate_conversations(&outcome.dir, DeviceChoice::Cpu, runs.world());
        let found = found.expect("it has its data");
        // Micro-batches of another size divide the sum elsewhere.
        let close = Tolerance::Close(Dtype::F32, found.num_targets as usize);
        close.assert("loss", &[found.loss], &[expected]);
        let counts = outcome.summary.conversations.expect("conversations");
        assert_eq!(counts.used + counts.dropped, 60);
        assert_eq!(found.num_conversations, counts.used - counts.train);
    }
}

#[test]
fn a_run_on_conversations_resumes_bit_for_bit() {
    let mut runs = Runs::new("conversations");
    write_chat(&runs);
    let whole = runs.finish(&recipe(&runs, &["run.workers=1"]));
    let options = Options { stop_after: Some(1), ..Options::default() };
    let part = runs.run(&recipe(&runs, &["run.workers=2"]), options).expect("the first part");
    let options = Options { resume: Some(part.dir), ..Options::default() };
    let rest = runs.run(&recipe(&runs, &["run.workers=1"]), options).expect("the second part");
    assert_eq!(rest.hashes(), whole.hashes());
}

//! Fine-tuning on conversations: the bits of one worker under every layout, with exact forecasts
//! and exact resumption.

use lockstep_config::Recipe;
use lockstep_harness::Runs;
use lockstep_harness::recipes::LLAMA;
use lockstep_harness::traffic::assert_traffic_and_memory_as_predicted;
use lockstep_trainer::Options;

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

//! Direct preference optimization: it starts from its reference, learns, gives the bits of one
//! worker under every layout, and resumes exactly.

use lockstep_config::{DeviceChoice, Dtype, Recipe};
use lockstep_harness::recipes::LLAMA;
use lockstep_harness::traffic::assert_traffic_and_memory_as_predicted;
use lockstep_harness::{Runs, Tolerance};
use lockstep_trainer::Options;
use lockstep_trainer::conversation_evaluation::evaluate_conversations;
use lockstep_trainer::preference_figures::PreferenceFigures;

const TEMPLATE: &str = "{% for m in messages %}{{ m.role[0] }}:{{ m.content }}\n{% endfor %}\
                        {% if add_generation_prompt %}a:{% endif %}";

fn write_pairs(runs: &Runs) {
    let pair = |n: usize| {
        let prompt = "why ".repeat(1 + n % 3);
        let (chosen, rejected) = ("so ".repeat(1 + n % 4), "no ".repeat(1 + n % 5));
        format!(r#"{{"prompt": "{prompt}{n}", "chosen": "{chosen}", "rejected": "{rejected}"}}"#)
    };
    let lines: Vec<String> = (0..40).map(pair).collect();
    for (name, text) in [("pairs.jsonl", lines.join("\n")), ("chat.jinja", TEMPLATE.to_owned())] {
        let path = runs.path().join(name);
        runs.world().files().write_atomic(&path, text.as_bytes()).expect("a scratch file");
    }
}

fn recipe(runs: &Runs, sets: &[&str]) -> Recipe {
    let path = |name: &str| runs.path().join(name).display().to_string();
    let source = format!("data.source={}", path("pairs.jsonl"));
    let template = format!("finetune.chat_template={}", path("chat.jinja"));
    let own = [
        &*source,
        &template,
        "data.format=chat",
        "data.validation=0.2",
        "finetune.method=dpo",
        "finetune.beta=0.5",
        "numerics.invariant_tensor_up_to=2",
        "optim.lr=0.01",
        "train.steps=4",
        "train.eval_batches=1",
        "run.isolation=threads",
        "run.threads=1",
    ];
    LLAMA.with(&[&own[..], sets].concat())
}

#[test]
fn every_layout_learns_preferences_to_the_bits_of_one_worker() {
    let mut runs = Runs::new("preferences");
    write_pairs(&runs);
    for method in ["finetune.lora_rank=2", "finetune.lora_rank=0"] {
        let alone = runs.finish(&recipe(&runs, &[method, "run.workers=1"]));
        // The model is its own reference at the start: every pair has a loss of ln 2.
        let [first, last] = [alone.summary.first_loss, alone.summary.final_loss];
        assert!((first - std::f64::consts::LN_2).abs() < 1e-12, "{first}");
        assert!(last < first, "{last}");
        // The loss is convex in the margin, so that of the mean margin is a lower bound.
        let PreferenceFigures { preference_accuracy, preference_margin } = alone.summary.preference;
        let (accuracy, margin) = (preference_accuracy.unwrap(), preference_margin.unwrap());
        assert!(margin > 0.0 && last >= (1.0 + (-margin).exp()).ln() - 1e-12, "{margin} {last}");
        let batch = recipe(&runs, &[method]).train.batch;
        let num_pairs = accuracy * (batch / 2) as f64;
        assert!((0.0..=1.0).contains(&accuracy) && num_pairs.fract() == 0.0, "{accuracy}");
        let layouts: &[&[&str]] = &[
            &["run.workers=4", "parallel.zero=1"],
            &["run.workers=2", "parallel.zero=3", "parallel.recompute=full"],
            &[
                "run.workers=4",
                "parallel.tensor=2",
                "parallel.pipeline=2",
                "parallel.sequence=true",
            ],
        ];
        for layout in layouts {
            let recipe = recipe(&runs, &[&[method], *layout].concat());
            let outcome = runs.finish(&recipe);
            assert_eq!(outcome.hashes(), alone.hashes(), "{method} {layout:?}");
            let validation =
                |o: &lockstep_harness::Outcome| o.summary.validation_loss.map(f64::to_bits);
            assert_eq!(validation(&outcome), validation(&alone), "{method} {layout:?}");
            let preference = outcome.summary.preference;
            assert_eq!(preference, alone.summary.preference, "{method} {layout:?}");
            assert_traffic_and_memory_as_predicted(&recipe, &outcome);
        }
    }
}

#[test]
fn an_evaluation_has_the_loss_of_training_and_its_accuracy() {
    let mut runs = Runs::new("preferences");
    write_pairs(&runs);
    for method in ["finetune.lora_rank=2", "finetune.lora_rank=0"] {
        let sets = [method, "run.workers=1", "train.eval_batches=100"];
        let outcome = runs.finish(&recipe(&runs, &sets));
        let expected = outcome.summary.validation_loss.expect("a validation split");
        let found = evaluate_conversations(&outcome.dir, DeviceChoice::Cpu, runs.world());
        let found = found.expect("it has its data");
        let counts = outcome.summary.conversations.expect("pairs");
        assert_eq!(found.num_targets, counts.used - counts.train, "{method}");
        let close = Tolerance::Close(Dtype::F32, found.num_targets as usize);
        close.assert("loss", &[found.loss], &[expected]);
        assert!((0.0..=1.0).contains(&found.accuracy.expect("of pairs")), "{found:?}");
        assert_eq!((found.margin.is_some(), found.perplexity), (true, None), "{method}");
    }
}

#[test]
fn a_run_on_preferences_resumes_from_the_same_reference() {
    let mut runs = Runs::new("preferences");
    write_pairs(&runs);
    let whole = runs.finish(&recipe(&runs, &["run.workers=1"]));
    let options = Options { stop_after: Some(2), ..Options::default() };
    let part = runs.run(&recipe(&runs, &["run.workers=1"]), options).expect("the first part");
    let options = Options { resume: Some(part.dir), ..Options::default() };
    let rest = runs.run(&recipe(&runs, &["run.workers=2"]), options).expect("the second part");
    assert_eq!(rest.hashes(), whole.hashes());
}

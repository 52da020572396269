//! Tests of whole tasks: shapes of known ones, examples, and files that are refused.

use lockstep_config::Blame;
use lockstep_platform::{ScratchDir, World};

use super::*;

struct Folder {
    world: World,
    scratch: ScratchDir,
}

impl Folder {
    fn with(task: &str) -> Self {
        let world = lockstep_platform::real();
        let scratch = ScratchDir::new(&world, "tasks").unwrap();
        let folder = Self { world, scratch };
        folder.write("task.yaml", task);
        let question = |number: usize| {
            format!("{{\"q\": \"q{number} \", \"c\": [\"a\", \"bb\"], \"gold\": {}}}\n", number % 2)
        };
        let lines = |numbers: std::ops::Range<usize>| numbers.map(question).collect::<String>();
        folder.write("test.jsonl", &lines(0..4));
        folder.write("dev.jsonl", &lines(10..40));
        folder
    }

    fn write(&self, name: &str, text: &str) {
        let path = self.scratch.path().join(name);
        self.world.files().write_atomic(&path, text.as_bytes()).unwrap();
    }

    fn open(&self, options: TaskOptions) -> Result<Task, DataError> {
        Task::open(&self.scratch.path().join("task.yaml"), options, self.world.files())
    }

    fn complaint(&self) -> String {
        let error = self.open(TaskOptions::default()).unwrap_err();
        assert_eq!(error.blame(), Blame::User);
        error.to_string().replace(self.scratch.path().to_str().unwrap(), "DIR")
    }
}

const PLAIN: &str = "task: plain\n\
    dataset_path: json\n\
    dataset_kwargs:\n  data_files: {test: test.jsonl, dev: [dev.jsonl]}\n\
    output_type: multiple_choice\n\
    test_split: test\n\
    doc_to_text: \"{{q.strip()}}:\"\n\
    doc_to_choice: c\n\
    doc_to_target: gold\n";

fn contexts(task: &Task) -> Vec<&str> {
    task.prompts.iter().map(|prompt| prompt.pairs[0].0.as_str()).collect()
}

#[test]
fn each_choice_follows_the_context_after_a_space() {
    let task = Folder::with(PLAIN).open(TaskOptions::default()).unwrap();
    assert_eq!((task.name(), task.num_questions(), task.num_examples()), ("plain", 4, 0));
    let pairs = &task.prompts[1].pairs;
    let pair = |after: &str| ("q1:".to_owned(), after.to_owned());
    assert_eq!(*pairs, [pair(" a"), pair(" bb")]);
    assert_eq!(task.prompts[1].question.answers, [1]);
    let scores = task.scores(&[-1.0, -1.5].repeat(4));
    let values: Vec<_> = scores.iter().map(|score| (score.metric.name(), score.value)).collect();
    // By characters the second choice wins.
    assert_eq!(values, [("acc", 0.5), ("acc_norm", 0.5)]);
    let requests = task.requests(&Tokenizer::bytes(), 100).unwrap();
    let text = |request: &Request| Tokenizer::bytes().decode(&request.tokens);
    assert_eq!((requests.len(), text(&requests[3]).as_str()), (8, "q1: bb"));
    assert_eq!(requests[3].num_targets, 3);
    // A long context loses its start: the last token is not read, so one more than fits is kept.
    let requests = task.requests(&Tokenizer::bytes(), 4).unwrap();
    assert_eq!((text(&requests[3]).as_str(), requests[3].num_targets), ("1: bb", 3));
    let error = task.requests(&Tokenizer::bytes(), 2).unwrap_err().to_string();
    assert!(error.contains("3 tokens"), "{error}");
}

#[test]
fn spaces_at_the_end_of_a_context_belong_to_the_continuation() {
    let bytes = Tokenizer::bytes();
    let request = Request::new("a \n", "b", &bytes).unwrap().unwrap();
    assert_eq!((request.tokens.len(), request.num_targets), (4, 3));
    assert_eq!(Request::new("", "b", &bytes).unwrap(), None, "bytes have no start token");
}

#[test]
fn examples_are_those_that_the_harness_draws() {
    let drawn = format!("{PLAIN}fewshot_split: dev\nnum_fewshot: 2\ndescription: \"Say: \"\n");
    let task = Folder::with(&drawn).open(TaskOptions::default()).unwrap();
    // Python's Random(1234).sample(range(30), 2), drawn anew for each question.
    assert_eq!(
        contexts(&task),
        [
            "Say: q34: a\n\nq24: a\n\nq0:",
            "Say: q13: bb\n\nq10: a\n\nq1:",
            "Say: q12: a\n\nq39: bb\n\nq2:",
            "Say: q35: bb\n\nq28: a\n\nq3:"
        ]
    );
    let first = format!("{PLAIN}fewshot_split: dev\nfewshot_config: {{sampler: first_n}}\n");
    let options = TaskOptions { num_examples: Some(1), limit: Some(2) };
    let task = Folder::with(&first).open(options).unwrap();
    assert_eq!(contexts(&task), ["q10: a\n\nq0:", "q10: a\n\nq1:"]);
    // Examples of the questions' own split do not show the answer.
    let own = "fewshot_config:\n  sampler: first_n\n  split: test\n  fewshot_delimiter: \"|\"\n";
    let task = Folder::with(&format!("{PLAIN}{own}")).open(options).unwrap();
    assert_eq!(contexts(&task), ["q1: bb|q0:", "q0: a|q1:"]);
    let samples =
        "fewshot_config:\n  sampler: first_n\n  samples:\n  - {q: s, c: [x, y], gold: 1}\n";
    let task = Folder::with(&format!("{PLAIN}{samples}")).open(options).unwrap();
    assert_eq!(contexts(&task)[0], "s: y\n\nq0:");
    let options = TaskOptions { num_examples: Some(40), limit: None };
    let error = Folder::with(&drawn).open(options).unwrap_err().to_string();
    assert!(error.contains("40 examples") && error.contains("30 documents"), "{error}");
}

#[test]
fn a_task_takes_keys_of_the_file_that_it_includes() {
    let folder = Folder::with("include: base.yaml\ntask: child\ndoc_to_text: q\n");
    folder.write("base.yaml", PLAIN);
    let task = folder.open(TaskOptions::default()).unwrap();
    assert_eq!((task.name(), contexts(&task)[2]), ("child", "q2 "));
    folder.write("base.yaml", "include: task.yaml\n");
    assert!(folder.complaint().contains("include one another"));
}

#[test]
fn what_is_not_supported_is_refused_with_its_key() {
    for (from, to, problem) in [
        ("dataset_path: json", "dataset_path: cais/mmlu", "write its documents to JSON Lines"),
        ("test.jsonl", "none.jsonl", "the data file none.jsonl exists neither"),
        ("test_split: test", "test_split: train", "has no split \"train\", only test, dev"),
        ("test_split: test", "other: 1\ntest_split: test", "other is not a key"),
        ("test_split: test", "process_docs: f\ntest_split: test", "apply it to the data"),
        ("multiple_choice", "generate_until", "= generate_until is not supported"),
        ("doc_to_choice: c", "doc_to_choice: \"{{d}}\"", "doc_to_choice fails for document 0"),
        ("doc_to_choice: c", "doc_to_choice: [1]", "not a list of texts"),
        ("doc_to_target: gold", "metric_list: [{metric: f1}]\ndoc_to_target: gold", "acc_norm"),
        ("doc_to_target: gold\n", "", "doc_to_target is missing"),
        ("task: plain", "task: [", "line"),
        ("doc_to_text: \"", "doc_to_text: !function \"", "Python code"),
    ] {
        let folder = Folder::with(&PLAIN.replace(from, to));
        let complaint = folder.complaint();
        assert!(complaint.contains("DIR/task.yaml") && complaint.contains(problem), "{complaint}");
    }
}

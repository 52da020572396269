//! Batches of mixtures: shares, streams, threads, resumption, ends, held-out documents.

use std::collections::BTreeMap;

use lockstep_config::{Recipe, Sources, resolve};
use lockstep_platform::{ScratchDir, World};

use crate::batch::Batch;
use crate::cursor::Cursor;
use crate::documents::Documents;
use crate::error::DataError;
use crate::mixture::progress;
use crate::placement::{DataRank, Feed};
use crate::shards::{BuildOptions, WriterOptions, build};
use crate::tokenizer::Tokenizer;
use crate::tokenizer::tests::SMALL;
use crate::{Loader, ReadOptions};

const CONTEXT: usize = 8;

/// A scratch folder with three sources of 40 documents each: `a.jsonl`, the folder `b` of two
/// texts, and the shards `c`. A document of source `a` is `a` many times, and its number.
struct Folder {
    world: World,
    scratch: ScratchDir,
}

fn document(source: char, index: usize) -> String {
    format!("{}{index:02}", source.to_string().repeat(3 + index * 7 % 11))
}

impl Folder {
    fn new() -> Self {
        let world = lockstep_platform::real();
        let folder = Self { scratch: ScratchDir::new(&world, "mixture").unwrap(), world };
        let line = |i| format!("{}\n", serde_json::json!({ "text": document('a', i) }));
        folder.write("a.jsonl", &(0..40).map(line).collect::<String>());
        let text = |range: std::ops::Range<usize>| {
            range.map(|i| document('b', i) + "|").collect::<String>()
        };
        folder.write("b/1.txt", &text(0..25));
        folder.write("b/2.txt", &text(25..40));
        let lines = (0..40).map(|i| document('c', i) + "|").collect::<String>();
        folder.write("c.txt", &lines);
        folder.shard("c.txt", "c", &Tokenizer::bytes());
        folder
    }

    fn write(&self, name: &str, text: &str) {
        let path = self.scratch.path().join(name);
        self.world.files().create_dir_all(path.parent().unwrap()).unwrap();
        self.world.files().write_atomic(&path, text.as_bytes()).unwrap();
    }

    fn shard(&self, from: &str, to: &str, tokenizer: &Tokenizer) {
        let options = ReadOptions { separator: Some("|".to_owned()), ..ReadOptions::default() };
        let path = self.scratch.path().join(from);
        let documents = Documents::open(&path, &options, &self.world).unwrap();
        let line_break = crate::EndOfDocument::Token("\n".to_owned());
        let tokenizer = tokenizer.clone().with_end_of_document(&line_break).unwrap();
        let writer = WriterOptions { shard_bytes: 200 };
        let options = BuildOptions { num_threads: 1, writer };
        let target = self.scratch.path().join(to);
        build(documents, &tokenizer, &target, options, &self.world, &mut |_| {}).unwrap();
    }

    fn recipe(&self, sources: &[&str], sets: &[&str]) -> Recipe {
        let path = self.scratch.path().display();
        let entry = |entry: &&str| format!("{{ {} }}", entry.replace("DIR", &path.to_string()));
        let entries: Vec<String> = sources.iter().map(entry).collect();
        let mixture = format!("data.mixture=[{}]", entries.join(", "));
        let small = ["model.context=8", "train.batch=16", "train.microbatch=1"];
        let small = small.into_iter().chain(["data.shuffle_buffer=4"]).map(str::to_owned);
        let sets = sets.iter().map(|set| set.replace("DIR", &path.to_string()));
        let sets = small.chain([mixture]).chain(sets).collect();
        resolve(&Sources { sets, ..Sources::default() }).unwrap()
    }

    /// The three sources, in shares of 5, 3 and 2 tenths.
    fn three(&self, sets: &[&str]) -> Recipe {
        self.recipe(&[&A, &B, &C].map(|entry| *entry), sets)
    }

    fn loader(&self, recipe: &Recipe, leaves: &[usize], cursor: Cursor) -> Loader {
        let rank = DataRank { worker: 0, num_workers: 1, leaves: leaves.to_vec() };
        let mut feed = Feed::open(recipe, &self.world, &rank).unwrap();
        feed.loader(&self.world, cursor).unwrap()
    }

    fn batches(&self, recipe: &Recipe, num_steps: usize) -> Vec<Batch> {
        let mut loader = self.loader(recipe, &ALL, Cursor::start());
        (0..num_steps).map(|_| loader.next_batch().unwrap().clone()).collect()
    }

    fn complaint(&self, recipe: &Recipe) -> String {
        let feed = Feed::open(recipe, &self.world, &DataRank::alone(recipe));
        let error = feed.map(drop).expect_err("it is refused").to_string();
        error.replace(&self.scratch.path().display().to_string(), "DIR")
    }
}

const ALL: [usize; 8] = [0, 1, 2, 3, 4, 5, 6, 7];
const A: &str = "source = \"DIR/a.jsonl\", weight = 5.0";
const B: &str = "source = \"DIR/b\", weight = 3.0, separator = \"|\"";
const C: &str = "source = \"DIR/c\", weight = 2.0";

/// Windows of each (leaf, source) as text, in the order of the steps.
fn windows(batches: &[Batch]) -> BTreeMap<(usize, char), Vec<String>> {
    let mut windows = BTreeMap::<_, Vec<_>>::new();
    for batch in batches {
        for (sequence, inputs) in batch.inputs.chunks(CONTEXT).enumerate() {
            let text = Tokenizer::bytes().decode(inputs);
            let source = text.chars().find(char::is_ascii_lowercase).unwrap_or('a');
            windows.entry((sequence / 2, source)).or_default().push(text);
        }
    }
    windows
}

#[test]
fn sources_have_their_shares_and_targets_run_one_token_ahead() {
    let folder = Folder::new();
    let recipe = folder.three(&[]);
    let mut loader = folder.loader(&recipe, &ALL, Cursor::start());
    for _ in 0..60 {
        let batch = loader.next_batch().unwrap();
        assert_eq!(batch.num_targets, 16 * 8);
        for (inputs, targets) in batch.inputs.chunks(CONTEXT).zip(batch.targets.chunks(CONTEXT)) {
            assert_eq!(inputs[1..], targets[..CONTEXT - 1]);
        }
    }
    let progress = progress(&recipe, loader.positions());
    let tokens: Vec<u64> = progress.iter().map(|source| source.tokens).collect();
    assert_eq!(tokens.iter().sum::<u64>(), 60 * 16 * 8);
    for (tokens, share) in tokens.iter().zip([0.5, 0.3, 0.2]) {
        assert!((*tokens as f64 / (60.0 * 16.0 * 8.0) - share).abs() < 0.03, "{progress:?}");
    }
    assert!(progress.iter().all(|source| source.epochs > 0), "they repeat: {progress:?}");
}

#[test]
fn a_stream_in_reading_order_is_every_eighth_document_of_its_source() {
    let folder = Folder::new();
    let recipe = folder.three(&["data.order=sequential", "data.validation=DIR/c.txt"]);
    let windows = windows(&folder.batches(&recipe, 30));
    for (leaf, source) in ALL.iter().flat_map(|leaf| ['a', 'b', 'c'].map(|name| (*leaf, name))) {
        let own = (leaf..).step_by(8).map(|number| document(source, number % 40) + "\n");
        let found = windows[&(leaf, source)].concat();
        let expected: String = own.take(found.len()).collect();
        assert_eq!(found, expected[..found.len()], "leaf {leaf} of {source}");
    }
}

#[test]
fn a_random_epoch_has_every_training_document_once_and_no_held_out_one() {
    let folder = Folder::new();
    let recipe = folder.recipe(
        &["source = \"DIR/a.jsonl\", weight = 1.0, epochs = 1", B],
        &["data.validation=0.2", "model.context=2"],
    );
    let mut loader = folder.loader(&recipe, &ALL, Cursor::start());
    for _ in 0..100 {
        loader.next_batch().unwrap();
    }
    let mut feed = Feed::open(&recipe, &folder.world, &DataRank::alone(&recipe)).unwrap();
    let held_out = feed.validation(1).unwrap();
    let held_out: Vec<u32> = held_out.microbatches.iter().flat_map(|m| m.inputs.clone()).collect();
    let held_out = Tokenizer::bytes().decode(&held_out);
    let progress = progress(&recipe, loader.positions());
    let num_held_out = (0..40).filter(|&i| held_out.contains(&document('a', i))).count();
    assert!((2..20).contains(&num_held_out), "{held_out}");
    let trained: usize = (0..40)
        .map(|i| document('a', i))
        .filter(|text| !held_out.contains(text))
        .map(|text| text.len() + 1)
        .sum();
    // A window takes two targets, and the first token of a stream is none.
    let left_out = trained as u64 - progress[0].tokens;
    assert!((8..=16).contains(&left_out), "{left_out} of {trained}");
    assert!(progress[1].epochs >= 1);
}

#[test]
fn workers_and_threads_draw_the_sequences_of_one_worker() {
    let folder = Folder::new();
    let whole = folder.batches(&folder.three(&[]), 12);
    let recipe = folder.three(&["data.tokenizer_threads=3"]);
    assert_eq!(folder.batches(&recipe, 12), whole);
    for leaves in [vec![0, 1, 2], vec![3, 7], vec![5]] {
        let mut loader = folder.loader(&recipe, &leaves, Cursor::start());
        for expected in &whole {
            let found = loader.next_batch().unwrap();
            assert_eq!(found.num_targets, expected.num_targets);
            for leaf in &leaves {
                for microbatch in 2 * leaf..2 * leaf + 2 {
                    assert_eq!(found.microbatch(microbatch), expected.microbatch(microbatch));
                }
            }
            let per_leaf = expected.positions.len() / 8;
            for leaf in 0..8 {
                let own = leaf * per_leaf..(leaf + 1) * per_leaf;
                let is_own = leaves.contains(&leaf);
                let expected = if is_own { &expected.positions[own.clone()] } else { &[0; 21] };
                assert_eq!(&found.positions[own], expected);
            }
        }
    }
}

#[test]
fn a_run_resumes_from_any_step_with_the_same_batches() {
    let folder = Folder::new();
    for sets in [&[][..], &["data.order=sequential"]] {
        let recipe = folder.three(sets);
        let whole = folder.batches(&recipe, 30);
        let mut loader = folder.loader(&recipe, &ALL, Cursor::start());
        for step in 1..29 {
            loader.next_batch().unwrap();
            let mut resumed = folder.loader(&recipe, &ALL, loader.cursor());
            assert_eq!(resumed.next_batch().unwrap(), &whole[step], "step {step}");
            assert_eq!(resumed.next_batch().unwrap(), &whole[step + 1], "step {step}");
        }
    }
}

#[test]
fn other_weights_at_a_resume_neither_repeat_nor_skip_a_window() {
    let folder = Folder::new();
    let recipe = folder.three(&[]);
    let mut loader = folder.loader(&recipe, &ALL, Cursor::start());
    let mut batches: Vec<Batch> = (0..7).map(|_| loader.next_batch().unwrap().clone()).collect();
    let weights = [&A.replace("5.0", "1.0"), &B.replace("3.0", "9.0"), C];
    let changed = folder.recipe(&weights, &[]);
    assert_eq!(recipe.data.mixture.with_weights_of(&changed.data.mixture), changed.data.mixture);
    let mut resumed = folder.loader(&changed, &ALL, loader.cursor());
    batches.extend((0..9).map(|_| resumed.next_batch().unwrap().clone()));
    let unchanged = windows(&folder.batches(&recipe, 60));
    let mut counts = BTreeMap::new();
    for ((leaf, source), found) in windows(&batches) {
        let expected = &unchanged[&(leaf, source)];
        assert_eq!(found, expected[..found.len()], "leaf {leaf} of {source}");
        *counts.entry(source).or_insert(0) += found.len();
    }
    assert!(counts[&'b'] > counts[&'a'], "the new weights count: {counts:?}");
}

#[test]
fn a_source_ends_after_its_epochs_and_leaves_its_share_to_the_others() {
    let folder = Folder::new();
    let entries = [&format!("{A}, epochs = 2"), B];
    let recipe = folder.recipe(&entries, &["data.validation=DIR/c.txt"]);
    let mut loader = folder.loader(&recipe, &ALL, Cursor::start());
    for _ in 0..60 {
        loader.next_batch().unwrap();
    }
    let [a, b] = &progress(&recipe, loader.positions())[..] else { panic!("two sources") };
    let num_bytes: usize = (0..40).map(|i| document('a', i).len() + 1).sum();
    // Per leaf, less than a window and its last target is left out.
    let left_out = 2 * num_bytes as u64 - a.tokens;
    assert!(left_out <= 8 * CONTEXT as u64, "{left_out} of {num_bytes}");
    assert_eq!((a.tokens + b.tokens, b.epochs > 2), (60 * 16 * 8, true));
    // The end is found again where the run resumes.
    let mut resumed = folder.loader(&recipe, &ALL, loader.cursor());
    assert_eq!(loader.next_batch().unwrap(), resumed.next_batch().unwrap());
}

#[test]
fn a_source_with_fewer_documents_than_leaves_reaches_all_leaves() {
    let folder = Folder::new();
    folder.write("few.jsonl", "{\"text\":\"first\"}\n{\"text\":null}\n{\"text\":\"second\"}\n");
    let entry = "source = \"DIR/few.jsonl\", weight = 1.0";
    let recipe = folder.recipe(&[entry], &["data.validation=DIR/c.txt"]);
    let mut text = vec![String::new(); 8];
    for batch in folder.batches(&recipe, 6) {
        for (leaf, inputs) in batch.inputs.chunks(2 * CONTEXT).enumerate() {
            text[leaf] += &Tokenizer::bytes().decode(inputs);
        }
    }
    for text in text {
        assert!(text.contains("first\n") && text.contains("second\n"), "{text}");
    }
}

#[test]
fn unusable_sources_are_named_before_the_run() {
    let folder = Folder::new();
    folder.write("empty.jsonl", "{\"text\":\"\"}\n{\"text\":null}\n");
    folder.write("broken.jsonl", "{\"text\":\"good\"}\nnot json\n");
    let refuse = |entry: &str| folder.complaint(&folder.recipe(&[A, entry], &[]));
    assert_eq!(
        refuse("source = \"DIR/empty.jsonl\", weight = 1.0"),
        "DIR/empty.jsonl has no documents with text to train on; give more text or remove the \
         source"
    );
    let missing = refuse("source = \"DIR/missing.txt\", weight = 1.0");
    assert!(missing.starts_with("DIR/missing.txt does not exist"), "{missing}");
    let field = refuse("source = \"DIR/a.jsonl\", weight = 1.0, field = \"body\"");
    assert_eq!(field, "DIR/a.jsonl line 1 has no field \"body\"; it has text");
    let recipe = folder.recipe(&[A], &["data.validation=0.0001"]);
    assert!(folder.complaint(&recipe).contains("its validation split has 0 tokens"));
    // A line that only one leaf reads fails in the thread of that leaf.
    let recipe = folder
        .recipe(&["source = \"DIR/broken.jsonl\", weight = 1.0"], &["data.validation=DIR/c.txt"]);
    let mut loader = folder.loader(&recipe, &ALL, Cursor::start());
    let error = (0..9).find_map(|_| loader.next_batch().err()).unwrap();
    assert!(error.to_string().contains("broken.jsonl line 2 is no JSON object"), "{error}");
}

#[test]
fn positions_of_other_data_are_refused() {
    let folder = Folder::new();
    let recipe = folder.three(&[]);
    let mut loader = folder.loader(&recipe, &ALL, Cursor::start());
    loader.next_batch().unwrap();
    let cursor = loader.cursor();
    let open = |recipe: &Recipe, cursor: &Cursor| {
        let mut feed = Feed::open(recipe, &folder.world, &DataRank::alone(recipe)).unwrap();
        let mut loader = feed.loader(&folder.world, cursor.clone())?;
        loader.next_batch().map(drop)
    };
    let refused = |found: Result<(), DataError>| found.unwrap_err().to_string();
    let without = Cursor { positions: Vec::new(), ..cursor.clone() };
    assert!(refused(open(&recipe, &without)).contains("the saved position does not exist in"));
    let two = folder.recipe(&[A, B], &[]);
    let short = Cursor { corpus: None, ..cursor.clone() };
    assert!(refused(open(&two, &short)).contains("the saved position does not exist in"));
    let mut beyond = cursor.clone();
    beyond.positions.iter_mut().skip(3).step_by(7).for_each(|row| *row = 1 << 60);
    assert!(refused(open(&recipe, &beyond)).contains("the saved position does not exist"));
    // A file that has grown has another fingerprint.
    let path = folder.scratch.path().join("a.jsonl");
    let mut text = folder.world.files().read(&path).unwrap();
    text.extend(b"{\"text\":\"more\"}\n");
    folder.world.files().write_atomic(&path, &text).unwrap();
    assert!(refused(open(&recipe, &cursor)).contains("is not the text that this run began with"));
}

#[test]
fn subwords_of_a_mixture_are_those_of_whole_documents() {
    let folder = Folder::new();
    folder.write("t.json", &SMALL);
    let path = folder.scratch.path().join("t.json").display().to_string();
    let tokenizer = Tokenizer::open(&path, folder.world.files()).unwrap();
    let sets = ["data.tokenizer=DIR/t.json", "model.vocab=400", "data.order=sequential"];
    let entry = "source = \"bundled\", weight = 1.0";
    let recipe = folder.recipe(&[entry], &[&sets[..], &["data.validation=DIR/c.txt"]].concat());
    let mut documents = Documents::bundled(&folder.world);
    let (mut text, mut expected) = (String::new(), vec![Vec::new(); 8]);
    for number in 0..40 {
        assert!(documents.next_document(&mut text).unwrap());
        tokenizer.encode(&text, &mut expected[number % 8]).unwrap();
        expected[number % 8].extend(tokenizer.end_of_document());
    }
    for (step, batch) in folder.batches(&recipe, 40).iter().enumerate() {
        for (leaf, expected) in expected.iter().enumerate() {
            let found = &batch.inputs[leaf * 16..(leaf + 1) * 16];
            assert_eq!(found, &expected[step * 16..(step + 1) * 16], "leaf {leaf}, step {step}");
        }
    }
    let sources = [entry, C];
    let other = folder.recipe(&sources, &sets);
    assert!(folder.complaint(&other).contains("DIR/c was tokenised with another tokenizer"));
}

#[test]
fn documents_are_cut_for_infilling_with_the_tokens_of_the_tokenizer() {
    let folder = Folder::new();
    folder.write("t.json", &SMALL);
    let tokens = ["data.tokenizer=DIR/t.json", "model.vocab=400", "data.order=sequential"];
    let entry = "source = \"bundled\", weight = 1.0";
    let sets = [&tokens[..], &["data.validation=DIR/c.txt", "data.fim_rate=1"]].concat();
    let recipe = folder.recipe(&[entry], &sets);
    let path = folder.scratch.path().join("t.json").display().to_string();
    let tokenizer = Tokenizer::open(&path, folder.world.files()).unwrap();
    let [prefix, middle, suffix] = tokenizer.sentinels().unwrap();
    let batches = folder.batches(&recipe, 60);
    let of_leaf = |batch: &Batch| batch.inputs[..16].to_vec();
    let stream: Vec<u32> = batches.iter().flat_map(of_leaf).collect();
    let end = tokenizer.end_of_document().unwrap();
    let cut: Vec<&[u32]> = stream.split(|&token| token == end).collect();
    let (mut documents, mut text) = (Documents::bundled(&folder.world), String::new());
    for (number, cut) in (0..8 * (cut.len() - 1)).map(|number| (number, cut[number / 8])) {
        assert!(documents.next_document(&mut text).unwrap());
        if number % 8 == 0 {
            let parts: Vec<&[u32]> =
                cut.split(|token| [prefix, middle, suffix].contains(token)).collect();
            let parts: Vec<String> = parts.iter().map(|part| tokenizer.decode(part)).collect();
            let [before, first, second, third] = &parts[..] else { panic!("{parts:?}") };
            // PSM has prefix, suffix, middle; SPM an empty prefix, suffix, prefix and middle.
            assert_eq!((first.clone() + third + second, before.as_str()), (text.clone(), ""));
        }
    }
    // Without sentinel tokens, and of shards, it is refused.
    folder.write("plain.json", &SMALL.replace("<|fim_", "<|other_"));
    let sets = sets.iter().map(|set| set.replace("t.json", "plain.json")).collect::<Vec<_>>();
    let sets: Vec<&str> = sets.iter().map(String::as_str).collect();
    let complaint = folder.complaint(&folder.recipe(&[entry], &sets));
    assert!(complaint.contains("has no sentinel tokens for data.fim_rate"), "{complaint}");
    let sets = ["data.tokenizer=DIR/t.json", "model.vocab=400", "data.fim_rate=0.5"];
    let complaint = folder.complaint(&folder.recipe(&[C], &sets));
    assert!(complaint.contains("DIR/c holds shards, which are tokens already"), "{complaint}");
}

#[test]
fn masked_documents_begin_after_the_end_of_the_one_before() {
    let folder = Folder::new();
    let recipe = folder.three(&["data.documents=masked"]);
    let firsts = |inputs: &[u32]| {
        let mut first = 0;
        let begins = |at: usize| inputs[at - 1] == u32::from(b'\n');
        let first_at = |at: usize| {
            first = if at > 0 && begins(at) { at as u32 } else { first };
            first
        };
        (0..inputs.len()).map(first_at).collect::<Vec<_>>()
    };
    let plain = folder.batches(&folder.three(&[]), 20);
    let mut num_masked = 0;
    let mut loader = folder.loader(&recipe, &ALL, Cursor::start());
    let mut third = folder.loader(&recipe, &[3], Cursor::start());
    for plain in &plain {
        let batch = loader.next_batch().unwrap();
        assert_eq!((&batch.inputs, &batch.targets), (&plain.inputs, &plain.targets));
        let sequences = batch.inputs.chunks(CONTEXT).zip(batch.documents.chunks(CONTEXT));
        for (inputs, documents) in sequences {
            assert_eq!(documents, firsts(inputs));
            num_masked += usize::from(documents[CONTEXT - 1] > 0);
        }
        let third = third.next_batch().unwrap();
        assert_eq!(third.documents(6), batch.documents(6));
        assert_eq!((plain.documents(6), batch.documents(6).map(<[u32]>::len)), (None, Some(8)));
    }
    assert!(num_masked > 20, "{num_masked} sequences of several documents");
    let mut feed = Feed::open(&recipe, &folder.world, &DataRank::alone(&recipe)).unwrap();
    for microbatch in feed.validation(1).unwrap().microbatches {
        assert_eq!(microbatch.documents, firsts(&microbatch.inputs));
    }
}

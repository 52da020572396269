//! Recipe keys of the data source reach the tokens: the field, and the end-of-document token.

use lockstep_config::{Recipe, Sources};
use lockstep_data::documents::{Documents, ReadOptions};
use lockstep_data::shards::{BuildOptions, WriterOptions, build};
use lockstep_data::{Corpus, EndOfDocument, Tokenizer};
use lockstep_platform::{ScratchDir, World};

fn recipe(sets: &[String]) -> Recipe {
    let small = ["model.context=2", "data.validation=0.5"].map(str::to_owned);
    let sets = small.iter().chain(sets).cloned().collect();
    lockstep_config::resolve(&Sources { sets, ..Sources::default() }).expect("it resolves")
}

fn world() -> (World, ScratchDir) {
    let world = lockstep_platform::real();
    let scratch = ScratchDir::new(&world, "sources").expect("a scratch folder");
    (world, scratch)
}

fn text(corpus: &Corpus) -> String {
    let parts = [
        corpus.train().to_vec().expect("it is read"),
        corpus.validation().to_vec().expect("it is read"),
    ];
    Tokenizer::bytes().decode(&parts.concat())
}

#[test]
fn the_field_and_the_end_of_a_document_are_keys_of_a_recipe() {
    let (world, scratch) = world();
    let path = scratch.path().join("lines.jsonl");
    let lines = "{\"body\": \"one\", \"text\": \"x\"}\n{\"body\": \"two\", \"text\": \"yy\"}\n";
    world.files().write_atomic(&path, lines.as_bytes()).unwrap();
    let source = format!("data.source={}", path.display());
    let read = |sets: &[&str]| {
        let sets: Vec<String> =
            [source.as_str()].iter().chain(sets).map(|&set| set.to_owned()).collect();
        Corpus::load(&recipe(&sets), &world).map(|corpus| text(&corpus))
    };
    assert!(read(&[]).unwrap_err().to_string().contains("too short"));
    assert_eq!(read(&["data.field=body"]).unwrap(), "one\ntwo");
    assert_eq!(read(&["data.field=body", "data.end_of_document=|"]).unwrap(), "one|two");
    let error = read(&["data.field=title"]).unwrap_err().to_string();
    assert!(error.contains("line 1 has no field \"title\"; it has body, text"), "{error}");
    let error = read(&["data.end_of_document=</s>"]).unwrap_err().to_string();
    assert!(error.contains("\"</s>\" is no token of tokenizer byte"), "{error}");
}

#[test]
fn shards_with_another_end_than_the_recipe_asks_for_are_refused() {
    let (world, scratch) = world();
    world.files().write_atomic(&scratch.path().join("t.txt"), b"some text, long enough").unwrap();
    let documents =
        Documents::open(&scratch.path().join("t.txt"), &ReadOptions::default(), &world).unwrap();
    let end = EndOfDocument::Token("|".to_owned());
    let tokenizer = Tokenizer::bytes().with_end_of_document(&end).unwrap();
    let folder = scratch.path().join("shards");
    let writer = WriterOptions { shard_bytes: 1 << 20 };
    let options = BuildOptions { num_threads: 1, writer };
    build(documents, &tokenizer, &folder, options, &world, &mut |_| {}).unwrap();
    let load = |set: &str| {
        let source = format!("data.source={}", folder.display());
        Corpus::load(&recipe(&[source, set.to_owned()]), &world)
    };
    assert_eq!(text(&load("data.end_of_document=auto").unwrap()), "some text, long enough|");
    assert!(load("data.end_of_document=|").is_ok());
    let error = load("data.end_of_document=none").unwrap_err().to_string();
    let message = "has \"|\" after each document and data.end_of_document = \"none\"";
    assert!(error.contains(message), "{error}");
}

//! Small texts, tokenizers and shards made on the spot, for tests of how a model is fed.

use lockstep_data::shards::{ShardWriter, WriterOptions};
use lockstep_data::{Documents, Tokenizer};
use lockstep_platform::World;
use std::collections::BTreeMap;
use std::path::Path;

/// Tokens of [`word_tokenizer`]: more than a byte holds.
pub const VOCAB: usize = 400;

/// The first chapters of the bundled text.
///
/// # Panics
/// When there are not as many.
pub fn chapters(world: &World, num_chapters: usize) -> Vec<String> {
    let mut documents = Documents::bundled(world);
    let chapter = |_| {
        let mut text = String::new();
        let found = documents.next_document(&mut text).expect("the bundled text can be read");
        assert!(found, "there are more chapters than that");
        text
    };
    (0..num_chapters).map(chapter).collect()
}

/// A `tokenizer.json` whose tokens are the commonest words of some texts, one for all others, and
/// one that ends documents.
///
/// # Panics
/// When the file cannot be written.
pub fn word_tokenizer(world: &World, path: &Path, texts: &[String]) -> Tokenizer {
    let mut counts = BTreeMap::<&str, usize>::new();
    let words = texts.iter().flat_map(|text| text.split(|c: char| !c.is_ascii_alphabetic()));
    words.filter(|word| !word.is_empty()).for_each(|word| *counts.entry(word).or_default() += 1);
    let mut words: Vec<_> = counts.into_iter().collect();
    words.sort_by_key(|(word, count)| (std::cmp::Reverse(*count), *word));
    assert!(words.len() >= VOCAB, "only {} different words", words.len());
    let mut vocab = vec!["\"<|endoftext|>\":0".to_owned(), "\"[UNK]\":1".to_owned()];
    let numbered = words.iter().take(VOCAB - 2).zip(2..);
    vocab.extend(numbered.map(|((word, _), index)| format!("\"{word}\":{index}")));
    let json = format!(
        "{{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\"added_tokens\":[{{\"id\":0,\
         \"content\":\"<|endoftext|>\",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,\
         \"normalized\":false,\"special\":true}}],\"normalizer\":null,\"pre_tokenizer\":\
         {{\"type\":\"Whitespace\"}},\"post_processor\":null,\"decoder\":null,\"model\":\
         {{\"type\":\"WordLevel\",\"vocab\":{{{}}},\"unk_token\":\"[UNK]\"}}}}",
        vocab.join(",")
    );
    world.files().write_atomic(path, json.as_bytes()).expect("a tokenizer can be written");
    Tokenizer::open(&path.to_string_lossy(), world.files()).expect("the tokenizer is sound")
}

/// A shard folder of some documents, several shards long.
///
/// # Panics
/// When it cannot be written.
pub fn shards(world: &World, folder: &Path, tokenizer: &Tokenizer, texts: &[String]) {
    let options = WriterOptions { shard_bytes: 4 << 10 };
    let mut writer = ShardWriter::create(folder, tokenizer, options, world).expect("a new folder");
    let mut tokens = Vec::new();
    for text in texts {
        tokens.clear();
        tokenizer.encode(text, &mut tokens).expect("every word has a token");
        tokens.extend(tokenizer.end_of_document());
        writer.push(&tokens).expect("tokens can be written");
        writer.end_document(text.len() as u64).expect("documents can be ended");
    }
    let manifest = writer.finish().expect("the folder appears");
    assert!(manifest.shards.len() > 2, "several shards");
}

/// A folder with a file for each text.
///
/// # Panics
/// When it cannot be written.
pub fn folder(world: &World, folder: &Path, texts: &[String]) {
    world.files().create_dir_all(folder).expect("a folder can be made");
    for (index, text) in texts.iter().enumerate() {
        let path = folder.join(format!("{index:04}.txt"));
        world.files().write_atomic(&path, text.as_bytes()).expect("a file can be written");
    }
}

//! Small corpora, tokenizers and token shards, written for tests of the data pipeline.

use lockstep_data::shards::{ShardWriter, WriterOptions};
use lockstep_data::{Documents, Tokenizer};
use lockstep_platform::World;
use std::collections::BTreeMap;
use std::path::Path;

/// Vocabulary size of [`write_word_tokenizer`]: larger than a byte.
pub const VOCAB: usize = 400;

/// The first chapters of the bundled text.
///
/// # Panics
/// When the text has fewer.
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

/// Writes a word-level `tokenizer.json`: the most frequent words of the texts, an unknown token and
/// an end-of-document token.
///
/// # Panics
/// When the file cannot be written.
pub fn write_word_tokenizer(world: &World, path: &Path, texts: &[String]) -> Tokenizer {
    let mut counts = BTreeMap::<&str, usize>::new();
    let tokens = texts.iter().flat_map(|text| text.split(|c: char| !c.is_ascii_alphabetic()));
    tokens.filter(|word| !word.is_empty()).for_each(|word| *counts.entry(word).or_default() += 1);
    let mut by_count: Vec<_> = counts.into_iter().collect();
    by_count.sort_by_key(|(word, count)| (std::cmp::Reverse(*count), *word));
    assert!(by_count.len() >= VOCAB, "only {} different words", by_count.len());
    let mut vocab = vec!["\"<|endoftext|>\":0".to_owned(), "\"[UNK]\":1".to_owned()];
    let numbered = by_count.iter().take(VOCAB - 2).zip(2..);
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
    Tokenizer::open(&path.to_string_lossy(), world.files()).expect("the tokenizer is valid")
}

/// Writes the texts as documents into a folder of several token shards.
///
/// # Panics
/// When it cannot be written.
pub fn write_shards(world: &World, folder: &Path, tokenizer: &Tokenizer, texts: &[String]) {
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

/// Writes one file for each text into a folder.
///
/// # Panics
/// When it cannot be written.
pub fn write_text_folder(world: &World, folder: &Path, texts: &[String]) {
    world.files().create_dir_all(folder).expect("a folder can be made");
    for (index, text) in texts.iter().enumerate() {
        let path = folder.join(format!("{index:04}.txt"));
        world.files().write_atomic(&path, text.as_bytes()).expect("a file can be written");
    }
}

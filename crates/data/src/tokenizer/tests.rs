//! Tests of both tokenizers and of invalid files.

use std::sync::LazyLock;

use lockstep_config::Blame;
use lockstep_platform::{ScratchDir, World};
use proptest::prelude::*;

use super::*;
use crate::documents::{Documents, Piece, ReadOptions};

/// Small vocabulary of the bundled corpus, trained once for all tests.
pub(crate) static SMALL: LazyLock<String> = LazyLock::new(|| learn(400));

fn learn(vocab: usize) -> String {
    let documents = Documents::bundled(&lockstep_platform::real());
    let options = TrainOptions { vocab, sample_bytes: 1 << 19, has_sentinels: true };
    train(documents, options, &mut |_| {}).unwrap().json
}

struct Folder {
    world: World,
    scratch: ScratchDir,
}

impl Folder {
    fn with(entries: &[(&str, &str)]) -> Self {
        let world = lockstep_platform::real();
        let scratch = ScratchDir::new(&world, "tokenizer").unwrap();
        for (name, text) in entries {
            let path = scratch.path().join(name);
            world.files().create_dir_all(path.parent().unwrap()).unwrap();
            world.files().write_atomic(&path, text.as_bytes()).unwrap();
        }
        Self { world, scratch }
    }

    fn open(&self, name: &str) -> Result<Tokenizer, DataError> {
        let path = self.scratch.path().join(name);
        Tokenizer::open(path.to_str().unwrap(), self.world.files())
    }

    fn complaint(&self, name: &str) -> String {
        let error = self.open(name).unwrap_err();
        assert_eq!(error.blame(), Blame::User);
        error.to_string().replace(self.scratch.path().to_str().unwrap(), "DIR")
    }
}

fn small() -> Tokenizer {
    Folder::with(&[("tokenizer.json", &SMALL)]).open("tokenizer.json").unwrap()
}

fn encode(tokenizer: &Tokenizer, text: &str) -> Vec<u32> {
    let mut tokens = Vec::new();
    tokenizer.encode(text, &mut tokens).unwrap();
    tokens
}

#[test]
fn bytes_survive_a_round_trip_and_the_unreadable_is_replaced() {
    let bytes = Tokenizer::open("byte", lockstep_platform::real().files()).unwrap();
    for text in ["", "In the beginning", "naïve café\n", "日本語 🙂"] {
        let tokens = encode(&bytes, text);
        assert_eq!(tokens.len(), text.len());
        assert!(tokens.iter().all(|&t| (t as usize) < bytes.vocab()));
        assert_eq!(bytes.decode(&tokens), text);
    }
    assert_eq!(bytes.decode(&[0x61, 0xc3]), "a\u{fffd}");
    assert_eq!(bytes.decode(&[0x61, 50_256, 0x62]), "a\u{fffd}b");
    assert_eq!((bytes.vocab(), bytes.end_of_document(), bytes.json()), (256, None, None));
    let newline = bytes.with_end_of_document(&EndOfDocument::Token("\n".to_owned())).unwrap();
    assert_eq!(newline.end_of_document(), Some(10));
    assert_eq!(newline.end_of_document_text().unwrap(), "\n");
}

#[test]
fn a_learnt_vocabulary_round_trips_any_text_and_is_shorter_than_bytes() {
    let tokenizer = small();
    assert_eq!(tokenizer.vocab(), 400);
    for text in ["", " ", "In the beginning God created", "naïve 日本語 🙂\n\n\tx", "\u{0}\r\n"]
    {
        assert_eq!(tokenizer.decode(&encode(&tokenizer, text)), text, "{text:?}");
    }
    let text = "And God said, Let there be light: and there was light.";
    assert!(encode(&tokenizer, text).len() * 3 < text.len() * 2);
}

#[test]
fn learning_twice_gives_the_same_vocabulary() {
    assert!(learn(300) == learn(300));
}

#[test]
fn a_sample_is_drawn_from_all_over_the_corpus() {
    let documents = Documents::bundled(&lockstep_platform::real());
    let total_bytes = documents.total_bytes();
    let mut last = TrainProgress::default();
    let options = TrainOptions { vocab: 300, sample_bytes: total_bytes / 10, has_sentinels: false };
    let trained = train(documents, options, &mut |counters| last = counters).unwrap();
    assert_eq!((last.read_bytes, last.total_bytes), (total_bytes, total_bytes));
    let share = trained.sample_bytes as f64 / total_bytes as f64;
    assert!((0.05..0.15).contains(&share), "{share}");
}

#[test]
fn a_vocabulary_without_room_for_the_bytes_is_refused() {
    let documents = Documents::bundled(&lockstep_platform::real());
    let options = TrainOptions { vocab: 200, sample_bytes: 1, has_sentinels: false };
    let error = train(documents, options, &mut |_| {}).unwrap_err();
    assert!(error.to_string().contains("try a number from 257 to"), "{error}");
}

#[test]
fn the_token_that_ends_a_document_is_found_or_chosen() {
    assert_eq!(small().end_of_document_text().as_deref(), Some(train::END));
    let none = small().with_end_of_document(&EndOfDocument::Nothing).unwrap();
    assert_eq!(none.end_of_document(), None);
    let chosen = small().with_end_of_document(&"e".parse().unwrap()).unwrap();
    assert_eq!(chosen.end_of_document_text().as_deref(), Some("e"));
    let error = small().with_end_of_document(&"</s>".parse().unwrap()).unwrap_err().to_string();
    assert!(error.starts_with("\"</s>\" is no token of tokenizer "), "{error}");
    assert!(error.ends_with("try \"<|endoftext|>\""), "{error}");

    // Without a common name, the configuration files decide.
    let nameless = SMALL.replace(train::END, "<end of it>");
    let config = r#"{"eos_token": {"content": "<end of it>"}}"#;
    let folder = Folder::with(&[
        ("bare/tokenizer.json", &nameless),
        ("named/tokenizer.json", &nameless),
        ("named/tokenizer_config.json", config),
        ("numbered/tokenizer.json", &nameless),
        ("numbered/config.json", r#"{"eos_token_id": [7, 8]}"#),
    ]);
    let end = |name| folder.open(name).unwrap().end_of_document();
    assert_eq!((end("bare"), end("named"), end("numbered")), (None, Some(0), Some(7)));
}

#[test]
fn truncation_and_padding_of_a_file_are_ignored() {
    let mut json: serde_json::Value = serde_json::from_str(&SMALL).unwrap();
    json["truncation"] = serde_json::json!({
        "direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0
    });
    json["padding"] = serde_json::json!({
        "strategy": { "Fixed": 100 }, "direction": "Right", "pad_to_multiple_of": null,
        "pad_id": 0, "pad_type_id": 0, "pad_token": "x"
    });
    let folder = Folder::with(&[("tokenizer.json", &json.to_string())]);
    let text = "In the beginning God created the heaven and the earth";
    assert_eq!(encode(&folder.open("").unwrap(), text), encode(&small(), text));
}

#[test]
fn tokenizers_that_cannot_be_used_are_refused_by_name() {
    let mut random: serde_json::Value = serde_json::from_str(&SMALL).unwrap();
    random["model"]["dropout"] = 0.1.into();
    let folder = Folder::with(&[
        ("text.json", "not JSON"),
        ("other.json", r#"{"version": "1.0"}"#),
        ("random.json", &random.to_string()),
        ("empty/readme.md", ""),
        ("old/tokenizer.model", ""),
    ]);
    let refused = |name, message: &str| {
        let line = folder.complaint(name);
        assert!(line.contains(message) && !line.contains('\n'), "{line}");
    };
    refused("missing.json", "DIR/missing.json does not exist; give byte, a tokenizer.json");
    refused("text.json", "DIR/text.json is no tokenizer.json that can be read: expected");
    refused("other.json", "DIR/other.json is no tokenizer.json that can be read: ");
    refused("random.json", "DIR/random.json sets model.dropout = 0.1");
    refused("empty", "DIR/empty holds no tokenizer.json");
    refused("old", "only tokenizer.model, which is not read");

    let error = small().require(399).unwrap_err().to_string();
    assert!(error.starts_with("model.vocab = 399 is below the 400 tokens of tokenizer "));
    assert!(error.ends_with("try 400 or 448"), "{error}");
    assert!(small().require(400).is_ok());
}

/// All tokens of a file's documents, piece by piece.
fn by_pieces(text: &str, tokenizer: &Tokenizer) -> (Vec<u32>, usize) {
    let folder = Folder::with(&[("t.txt", text)]);
    let path = folder.scratch.path().join("t.txt");
    let mut documents = Documents::open(&path, &ReadOptions::default(), &folder.world).unwrap();
    let (mut piece, mut tokens, mut num_pieces) = (String::new(), Vec::new(), 0);
    while let Some(kind) = documents.next_into(&mut piece).unwrap() {
        tokenizer.encode(&piece, &mut tokens).unwrap();
        num_pieces += 1;
        assert!(kind == Piece::Last || piece.len() > 1000);
    }
    (tokens, num_pieces)
}

#[test]
fn the_tokens_of_a_long_text_are_those_of_its_pieces() {
    let tokenizer = small();
    let mut documents = Documents::bundled(&lockstep_platform::real());
    let (mut book, mut chapter) = (String::new(), String::new());
    while book.len() < 1 << 20 && documents.next_document(&mut chapter).unwrap() {
        book.push_str(&chapter);
    }
    let (tokens, num_pieces) = by_pieces(&book, &tokenizer);
    assert!(num_pieces >= 4);
    assert!(tokens == encode(&tokenizer, &book));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn every_text_survives_a_learnt_vocabulary(text in any::<String>()) {
        static TOKENIZER: LazyLock<Tokenizer> = LazyLock::new(small);
        let mut tokens = Vec::new();
        TOKENIZER.encode(&text, &mut tokens).unwrap();
        prop_assert!(tokens.iter().all(|&token| (token as usize) < TOKENIZER.vocab()));
        prop_assert_eq!(TOKENIZER.decode(&tokens), text);
    }
}

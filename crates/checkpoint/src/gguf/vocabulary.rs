//! Tokenizer of a model as GGUF's metadata: a byte-level BPE, plain bytes, or none.

use super::format::Value as Item;
use serde::Deserialize;
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// Tokens of plain bytes.
const NUM_BYTES: usize = 256;

/// Types of tokens.
const NORMAL: i32 = 1;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
const UNUSED: i32 = 5;

/// Names of the patterns that split a text into words, by a part of the pattern that no other has.
const PATTERNS: [(&str, &str); 2] =
    [(r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]", "llama-bpe"), (r"\p{N}| ?[^\s\p{L}\p{N}]", "qwen2")];

/// Name of the pattern of GPT-2, which `ByteLevel` has by itself.
const GPT2_PATTERN: &str = "gpt-2";

/// The parts of a `tokenizer.json` that GGUF needs.
#[derive(Deserialize)]
struct TokenizerJson {
    model: BpeModel,
    #[serde(default)]
    added_tokens: Vec<AddedToken>,
    #[serde(default)]
    pre_tokenizer: Value,
    #[serde(default)]
    post_processor: Value,
}

#[derive(Deserialize)]
struct BpeModel {
    #[serde(default, rename = "type")]
    kind: String,
    #[serde(default)]
    byte_fallback: bool,
    vocab: Value,
    #[serde(default)]
    merges: Vec<Merge>,
}

/// Both ways in which files write a merge.
#[derive(Deserialize)]
#[serde(untagged)]
enum Merge {
    Text(String),
    Pair([String; 2]),
}

#[derive(Deserialize)]
struct AddedToken {
    id: u32,
    content: String,
    #[serde(default)]
    special: bool,
}

/// Files and ids that describe a vocabulary.
pub(super) struct Vocabulary<'a> {
    /// Content of `tokenizer.json`; none for bytes.
    pub(super) tokenizer: Option<&'a [u8]>,
    /// Content of `tokenizer_config.json`.
    pub(super) tokenizer_config: Option<&'a [u8]>,
    /// Content of `chat_template.jinja`, which is stronger than that of the configuration.
    pub(super) chat_template: Option<&'a [u8]>,
    /// Ids of special tokens, as in `config.json`.
    pub(super) special_tokens: &'a Map<String, Value>,
    /// Rows of the embedding.
    pub(super) num_rows: usize,
}

impl Vocabulary<'_> {
    /// Metadata of the tokenizer; the error says why it has no counterpart.
    pub(super) fn metadata(&self) -> Result<Vec<(String, Item)>, String> {
        if self.tokenizer.is_none() && self.num_rows < NUM_BYTES {
            // Tokens are not bytes, and their texts are unknown.
            let none = Item::Text("none".to_owned());
            return Ok(vec![("tokenizer.ggml.model".to_owned(), none)]);
        }
        let mut tokens = vec![None; self.num_rows];
        let mut place = |id: u32, text: String, kind: i32| match tokens.get_mut(id as usize) {
            Some(token) => {
                *token = Some((text, kind));
                Ok(())
            }
            None => Err(format!("token {id} has no row in a vocabulary of {}", self.num_rows)),
        };
        let (mut merges, mut pattern, mut adds_start) = (Vec::new(), GPT2_PATTERN, false);
        match self.tokenizer {
            None => {
                for (byte, character) in byte_characters().into_iter().enumerate() {
                    place(byte as u32, character.to_string(), NORMAL)?;
                }
            }
            Some(json) => {
                let file: TokenizerJson = serde_json::from_slice(json)
                    .map_err(|error| format!("tokenizer.json is not a BPE: {error}"))?;
                pattern = pattern_of(&file)?;
                adds_start = adds_start_token(&file.post_processor);
                let vocab: BTreeMap<String, u32> = serde_json::from_value(file.model.vocab)
                    .map_err(|error| format!("tokenizer.json is not a BPE: {error}"))?;
                for (text, id) in vocab {
                    place(id, text, NORMAL)?;
                }
                for AddedToken { id, content, special } in file.added_tokens {
                    place(id, content, if special { CONTROL } else { USER_DEFINED })?;
                }
                merges = file.model.merges;
            }
        }
        let unused = |id: usize| (format!("[PAD{id}]"), UNUSED);
        let tokens = tokens.into_iter().enumerate();
        let (texts, types) = tokens.map(|(id, token)| token.unwrap_or_else(|| unused(id))).unzip();
        let merges = merges.into_iter().map(|merge| match merge {
            Merge::Text(text) => text,
            Merge::Pair([left, right]) => format!("{left} {right}"),
        });
        let mut all = vec![
            ("model", Item::Text("gpt2".to_owned())),
            ("pre", Item::Text(pattern.to_owned())),
            ("tokens", Item::Texts(texts)),
            ("token_type", Item::I32s(types)),
            ("merges", Item::Texts(merges.collect())),
            ("add_bos_token", Item::Bool(adds_start)),
        ];
        for key in ["bos_token_id", "eos_token_id"] {
            // Some models have several ends; the first is the one of a document.
            let id = self.special_tokens.get(key).map(|ids| ids.get(0).unwrap_or(ids));
            if let Some(id) = id.and_then(Value::as_u64).and_then(|id| u32::try_from(id).ok()) {
                all.push((key, Item::U32(id)));
            }
        }
        let named = |(key, item)| (format!("tokenizer.ggml.{key}"), item);
        let mut all: Vec<_> = all.into_iter().map(named).collect();
        if let Some(template) = self.chat_template() {
            all.push(("tokenizer.chat_template".to_owned(), Item::Text(template)));
        }
        Ok(all)
    }

    /// Chat template; of several named ones, that of conversations.
    fn chat_template(&self) -> Option<String> {
        if let Some(template) = self.chat_template {
            return String::from_utf8(template.to_vec()).ok();
        }
        let config: Value = serde_json::from_slice(self.tokenizer_config?).ok()?;
        let template = &config["chat_template"];
        let default = || {
            let mut named = template.as_array()?.iter();
            named.find(|entry| entry["name"] == "default")?["template"].as_str()
        };
        template.as_str().or_else(default).map(str::to_owned)
    }
}

/// Name of the pattern that splits a text.
fn pattern_of(file: &TokenizerJson) -> Result<&'static str, String> {
    if file.model.kind != "BPE" || file.model.byte_fallback {
        return Err("only a byte-level BPE has a counterpart in GGUF; export a model whose \
                    tokenizer.json is one, as those of GPT-2, Llama 3 and Qwen"
            .to_owned());
    }
    let steps = match file.pre_tokenizer["pretokenizers"].as_array() {
        Some(steps) => steps.iter().collect(),
        None => vec![&file.pre_tokenizer],
    };
    let is_byte_level = |step: &&Value| step["type"] == "ByteLevel";
    let Some(bytes) = steps.iter().find(|step| is_byte_level(step)) else {
        return Err("tokenizer.json does not split text into bytes".to_owned());
    };
    let splits: Vec<&Value> = steps.iter().filter(|step| !is_byte_level(step)).copied().collect();
    if splits.is_empty() && bytes["use_regex"] != false && bytes["add_prefix_space"] != true {
        return Ok(GPT2_PATTERN);
    }
    let pattern = match splits[..] {
        [split] if split["type"] == "Split" => split["pattern"]["Regex"].as_str(),
        _ => None,
    };
    let known = PATTERNS.iter().find(|(part, _)| pattern.is_some_and(|text| text.contains(part)));
    known.map(|(_, name)| *name).ok_or_else(|| {
        "tokenizer.json splits text by a pattern that GGUF has no name for here; those of GPT-2, \
         Llama 3 and Qwen2 have one"
            .to_owned()
    })
}

/// Whether a special token precedes every text.
fn adds_start_token(post_processor: &Value) -> bool {
    match post_processor["processors"].as_array() {
        Some(steps) => steps.iter().any(adds_start_token),
        None => post_processor["single"][0].get("SpecialToken").is_some(),
    }
}

/// Characters that stand for the 256 bytes in a byte-level BPE: printable ones for themselves, the
/// others from U+0100 on.
fn byte_characters() -> Vec<char> {
    let mut next = '\u{100}'..;
    let character = |byte: u8| match byte {
        b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff => char::from(byte),
        _ => next.next().expect("many characters"),
    };
    (0..=u8::MAX).map(character).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn metadata(tokenizer: &Value, num_rows: usize) -> Result<BTreeMap<String, Item>, String> {
        let (special, tokenizer) = (json!({"eos_token_id": [3, 9]}), tokenizer.to_string());
        let vocabulary = Vocabulary {
            tokenizer: Some(tokenizer.as_bytes()),
            tokenizer_config: Some(br#"{"chat_template": "{{ text }}"}"#),
            chat_template: None,
            special_tokens: special.as_object().expect("an object"),
            num_rows,
        };
        Ok(vocabulary.metadata()?.into_iter().collect())
    }

    fn llama3() -> Value {
        json!({
            "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]]},
            "added_tokens": [
                {"id": 3, "content": "<|end_of_text|>", "special": true},
                {"id": 4, "content": "<own>", "special": false},
            ],
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": r"\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+"}},
                {"type": "ByteLevel", "use_regex": false},
            ]},
            "post_processor": {"type": "Sequence", "processors": [
                {"type": "ByteLevel"},
                {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>"}}]},
            ]},
        })
    }

    #[test]
    fn a_bpe_becomes_tokens_types_and_merges() {
        let found = metadata(&llama3(), 6).expect("a BPE");
        let texts = ["a", "b", "ab", "<|end_of_text|>", "<own>", "[PAD5]"].map(str::to_owned);
        assert_eq!(found["tokenizer.ggml.tokens"], Item::Texts(texts.to_vec()));
        let types = Item::I32s(vec![NORMAL, NORMAL, NORMAL, CONTROL, USER_DEFINED, UNUSED]);
        assert_eq!(found["tokenizer.ggml.token_type"], types);
        assert_eq!(found["tokenizer.ggml.merges"], Item::Texts(vec!["a b".to_owned()]));
        assert_eq!(found["tokenizer.ggml.pre"], Item::Text("llama-bpe".to_owned()));
        assert_eq!(found["tokenizer.ggml.add_bos_token"], Item::Bool(true));
        assert_eq!(found["tokenizer.ggml.eos_token_id"], Item::U32(3));
        assert_eq!(found["tokenizer.chat_template"], Item::Text("{{ text }}".to_owned()));
        assert!(!found.contains_key("tokenizer.ggml.bos_token_id"));
        let error = metadata(&llama3(), 4).unwrap_err();
        assert_eq!(error, "token 4 has no row in a vocabulary of 4");
    }

    #[test]
    fn the_chat_template_is_that_of_its_own_file_or_the_default_of_several() {
        let template = |config: &[u8], own: Option<&[u8]>| {
            let special_tokens = &Map::new();
            let (tokenizer_config, num_rows) = (Some(config), 0);
            Vocabulary {
                tokenizer: None,
                tokenizer_config,
                chat_template: own,
                special_tokens,
                num_rows,
            }
            .chat_template()
        };
        let named = br#"{"chat_template": [{"name": "tool_use", "template": "t"},
            {"name": "default", "template": "d"}]}"#;
        assert_eq!(template(named, None).as_deref(), Some("d"));
        assert_eq!(template(named, Some(b"own")).as_deref(), Some("own"));
        assert_eq!(template(b"{}", None), None);
    }

    #[test]
    fn other_tokenizers_are_refused() {
        let mut unigram = llama3();
        unigram["model"]["type"] = "Unigram".into();
        assert!(metadata(&unigram, 6).unwrap_err().contains("only a byte-level BPE"));
        let mut other = llama3();
        other["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = r"\w+".into();
        assert!(metadata(&other, 6).unwrap_err().contains("no name for"));
    }

    #[test]
    fn bytes_have_the_characters_of_gpt2() {
        let characters = byte_characters();
        assert_eq!((characters[0], characters[usize::from(b' ')]), ('\u{100}', '\u{120}'));
        assert_eq!((characters[usize::from(b'\n')], characters[0x7f]), ('\u{10a}', '\u{121}'));
        assert_eq!((characters[0xad], characters[0xff]), ('\u{143}', '\u{ff}'));
    }
}

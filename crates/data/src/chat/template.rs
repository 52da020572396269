//! Chat template of a tokenizer folder, rendered as `transformers` does.
//!
//! The engine is set up like the one of `apply_chat_template`: blocks are trimmed, loops may break,
//! and `raise_exception`, `strftime_now` and `tojson` exist. A `{% generation %}` block marks
//! answers; it becomes a filter that puts a noncharacter before and after its text, and the two are
//! removed from the result.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use lockstep_config::{Recipe, Tokenizer};
use lockstep_platform::{FileKind, Files};
use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, Error, ErrorKind, Value};

use super::error::{ChatError, reason};
use super::message::{ASSISTANT, ROLES};
use super::{Date, Message, python};
use crate::error::DataError;

/// Template of ChatML, for models without one.
const CHATML: &str = "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + \
    message['content'] + '<|im_end|>' + '\n' }}{% endfor %}{% if add_generation_prompt %}\
    {{ '<|im_start|>assistant\n' }}{% endif %}";

/// Name of the built-in template.
const CHATML_NAME: &str = "chatml";

/// File with the special tokens, and often the template.
const CONFIG: &str = "tokenizer_config.json";

/// Name of the template inside the engine.
const NAME: &str = "chat";

/// Fields of `tokenizer_config.json` that templates may print.
const SPECIAL_TOKENS: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

/// Instructions that one rendering may take: tens of thousands of turns, in less than a second.
const FUEL: u64 = 5_000_000;

/// Noncharacters around the text of a generation block.
const ANSWER_BEGIN: char = '\u{fdd0}';
const ANSWER_END: char = '\u{fdd1}';

/// A chat template with the special tokens of its tokenizer. Cheap to clone.
#[derive(Clone)]
pub struct ChatTemplate {
    name: String,
    source: Arc<str>,
    engine: Arc<Environment<'static>>,
    special_tokens: Vec<(String, Value)>,
    /// Whether the template itself marks answers.
    marks_answers: bool,
}

/// A conversation as text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rendered {
    /// The whole text.
    pub text: String,
    /// Bytes of the text that the assistant wrote, in order.
    pub answers: Vec<Range<usize>>,
}

impl ChatTemplate {
    /// Template of a recipe on conversations: the one of `finetune.chat_template` (`chatml`, or the
    /// path of a file), or that of the tokenizer's folder. The template of a model of bytes lies in
    /// its own folder.
    pub fn of_recipe(recipe: &Recipe, date: Date, files: &dyn Files) -> Result<Self, DataError> {
        let tokenizer = match &recipe.data.tokenizer {
            Tokenizer::Byte => None,
            Tokenizer::File(path) => Some(Path::new(path)),
        };
        let model = (!recipe.from.is_empty()).then(|| Path::new(&recipe.from));
        let bytes = || ChatError::Missing { tokenizer: "byte".to_owned() };
        match (&*recipe.finetune.chat_template, tokenizer, model) {
            ("", Some(tokenizer), _) => Self::open(tokenizer, date, files),
            ("", None, Some(model)) => {
                Self::open(model, date, files).map_err(|error| match error {
                    DataError::Chat(ChatError::Missing { .. }) => bytes().into(),
                    other => other,
                })
            }
            ("", None, None) => Err(bytes().into()),
            (name, tokenizer, _) => Self::named(name, tokenizer, date, files),
        }
    }

    /// Template of a tokenizer folder, or of the folder of a `tokenizer.json`.
    pub fn open(tokenizer: &Path, date: Date, files: &dyn Files) -> Result<Self, DataError> {
        let folder = folder_of(tokenizer, files);
        let config_path = folder.join(CONFIG);
        let config = read_config(&config_path, files)?;
        let source = folder.join("chat_template.jinja");
        let (name, source) = if files.metadata(&source).is_some() {
            (source.display().to_string(), read_text(&source, files)?)
        } else {
            let of_config = config_template(&config);
            let missing = || ChatError::Missing { tokenizer: folder.display().to_string() };
            (config_path.display().to_string(), of_config.ok_or_else(missing)?)
        };
        Ok(Self::parse(&name, &source, special_tokens(&config), date)?)
    }

    /// Template of a file, or a built-in one by its name, with the special tokens of a tokenizer.
    pub fn named(
        name: &str,
        tokenizer: Option<&Path>,
        date: Date,
        files: &dyn Files,
    ) -> Result<Self, DataError> {
        if name == CHATML_NAME {
            return Ok(Self::chatml(date));
        }
        let source = read_text(Path::new(name), files)?;
        let config = match tokenizer {
            Some(tokenizer) => read_config(&folder_of(tokenizer, files).join(CONFIG), files)?,
            None => serde_json::Value::Null,
        };
        Ok(Self::parse(name, &source, special_tokens(&config), date)?)
    }

    /// The built-in template ChatML.
    pub fn chatml(date: Date) -> Self {
        let template = Self::parse(CHATML_NAME, CHATML, Vec::new(), date);
        template.expect("the built-in template is valid")
    }

    /// Compiles a template. `special_tokens` are pairs such as `bos_token` and its text.
    pub fn parse(
        name: &str,
        source: &str,
        special_tokens: Vec<(String, String)>,
        date: Date,
    ) -> Result<Self, ChatError> {
        let invalid =
            |error: &Error| ChatError::Invalid { name: name.to_owned(), reason: reason(error) };
        let mut engine = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        engine.set_syntax(syntax.map_err(|error| invalid(&error))?);
        engine.set_fuel(Some(FUEL));
        engine.set_unknown_method_callback(python::method);
        engine.add_filter("tojson", |value: Value, options| python::to_json(&value, options));
        engine.add_filter("generation", |text: String| format!("{ANSWER_BEGIN}{text}{ANSWER_END}"));
        engine.add_function("raise_exception", |message: String| -> Result<Value, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, message))
        });
        engine.add_function("strftime_now", move |format: String| date.format(&format));
        let (filtered, marks_answers) = generation_as_filter(source);
        engine.add_template_owned(NAME, filtered).map_err(|error| invalid(&error))?;
        let special_tokens =
            special_tokens.into_iter().map(|(name, text)| (name, Value::from(text))).collect();
        let (name, source, engine) = (name.to_owned(), source.into(), Arc::new(engine));
        Ok(Self { name, source, engine, special_tokens, marks_answers })
    }

    /// Whether the template expects turns of this role: one that all know, or one that it names.
    pub fn knows(&self, role: &str) -> bool {
        let is_named =
            || ["'", "\""].iter().any(|q| self.source.contains(&format!("{q}{role}{q}")));
        ROLES.contains(&role) || is_named()
    }

    /// Source text of the template.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// A conversation as text; `add_generation_prompt` ends it where the assistant's answer begins.
    pub fn render(
        &self,
        messages: &[Message],
        add_generation_prompt: bool,
    ) -> Result<String, ChatError> {
        self.render_with(messages, &[], add_generation_prompt)
    }

    /// A conversation as text, with other values for the template (such as `tools`).
    pub fn render_with(
        &self,
        messages: &[Message],
        others: &[(String, Value)],
        add_generation_prompt: bool,
    ) -> Result<String, ChatError> {
        let text = self.render_marked(messages, others, add_generation_prompt)?;
        Ok(if self.marks_answers { without_marks(&text).text } else { text })
    }

    /// A conversation as text with the bytes of its answers: where the template marks them, or what
    /// a turn of the assistant adds to the text up to it.
    pub fn render_answers(
        &self,
        messages: &[Message],
        others: &[(String, Value)],
    ) -> Result<Rendered, ChatError> {
        let text = self.render_marked(messages, others, false)?;
        if self.marks_answers {
            return Ok(without_marks(&text));
        }
        let mut answers = Vec::new();
        for (turn, _) in messages.iter().enumerate().filter(|(_, m)| m.role() == ASSISTANT) {
            let rewrites = || ChatError::Rewrites { name: self.name.clone() };
            // A template may demand a user's turn first, and has nothing to say before it.
            let prompt = match turn {
                0 => String::new(),
                _ => self.render_marked(&messages[..turn], others, true)?,
            };
            let answered = if turn + 1 == messages.len() {
                text.clone()
            } else {
                self.render_marked(&messages[..=turn], others, false)?
            };
            if !(answered.starts_with(&prompt) && text.starts_with(&answered)) {
                return Err(rewrites());
            }
            answers.push(prompt.len()..answered.len());
        }
        Ok(Rendered { text, answers })
    }

    /// Renders with the marks of generation blocks.
    fn render_marked(
        &self,
        messages: &[Message],
        others: &[(String, Value)],
        add_generation_prompt: bool,
    ) -> Result<String, ChatError> {
        if self.marks_answers {
            let texts = messages.iter().filter_map(Message::content);
            let marks = [ANSWER_BEGIN, ANSWER_END];
            for text in texts {
                if let Some(mark) = text.chars().find(|char| marks.contains(char)) {
                    return Err(ChatError::Marker { code: mark as u32 });
                }
            }
        }
        let messages: Value = messages.iter().map(|message| message.value().clone()).collect();
        let defaults = [
            ("messages".to_owned(), messages),
            ("tools".to_owned(), Value::from(())),
            ("documents".to_owned(), Value::from(())),
            ("add_generation_prompt".to_owned(), Value::from(add_generation_prompt)),
        ];
        let given = self.special_tokens.iter().chain(others).cloned();
        let context = Value::from_pairs(defaults.into_iter().chain(given));
        let template = self.engine.get_template(NAME).expect("it was added");
        template
            .render(context)
            .map_err(|error| ChatError::Refused { name: self.name.clone(), reason: reason(&error) })
    }
}

/// Turns generation blocks into blocks of the filter `generation`; whether there are any.
fn generation_as_filter(source: &str) -> (String, bool) {
    let mut out = String::with_capacity(source.len());
    let (mut rest, mut has_any) = (source, false);
    while let Some(start) = rest.find("{%") {
        let Some(len) = rest[start..].find("%}") else { break };
        let tag = &rest[start + 2..start + len];
        let inner = tag.trim_start_matches(['-', '+']).trim_end_matches(['-', '+']).trim();
        let replacement = match inner {
            "generation" => Some("filter generation"),
            "endgeneration" => Some("endfilter"),
            _ => None,
        };
        has_any |= replacement.is_some();
        out.push_str(&rest[..start + 2]);
        match replacement {
            Some(replacement) => out.push_str(&tag.replace(inner, replacement)),
            // Only the start: a `%}` inside a string of the tag is not its end.
            None => out.push_str(tag),
        }
        rest = &rest[start + len..];
    }
    out.push_str(rest);
    (out, has_any)
}

/// Removes the marks of generation blocks and notes what they enclose.
fn without_marks(marked: &str) -> Rendered {
    let mut rendered = Rendered { text: String::with_capacity(marked.len()), answers: Vec::new() };
    let mut begin = None;
    for char in marked.chars() {
        match char {
            ANSWER_BEGIN => begin = Some(rendered.text.len()),
            ANSWER_END => {
                let range = begin.take().map(|begin| begin..rendered.text.len());
                rendered.answers.extend(range.filter(|range| !range.is_empty()));
            }
            char => rendered.text.push(char),
        }
    }
    rendered
}

fn read_text(path: &Path, files: &dyn Files) -> Result<String, DataError> {
    let bytes = files.read(path)?;
    String::from_utf8(bytes).map_err(|error| DataError::NotUtf8 {
        path: path.to_owned(),
        offset_bytes: error.utf8_error().valid_up_to(),
    })
}

/// Folder of a tokenizer that is given as a folder or as its file.
fn folder_of<'a>(tokenizer: &'a Path, files: &dyn Files) -> &'a Path {
    match (files.metadata(tokenizer), tokenizer.parent()) {
        (Some(FileKind::File { .. }), Some(folder)) => folder,
        _ => tokenizer,
    }
}

/// `tokenizer_config.json` of a folder; null if there is none.
fn read_config(path: &Path, files: &dyn Files) -> Result<serde_json::Value, DataError> {
    if files.metadata(path).is_none() {
        return Ok(serde_json::Value::Null);
    }
    let text = read_text(path, files)?;
    let parsed = serde_json::from_str(&text);
    let invalid = |error: serde_json::Error| ChatError::Invalid {
        name: path.display().to_string(),
        reason: error.to_string(),
    };
    Ok(parsed.map_err(invalid)?)
}

/// `chat_template` is a string, or a list of named ones of which `default` is for conversations.
fn config_template(config: &serde_json::Value) -> Option<String> {
    let template = &config["chat_template"];
    let of_list = template.as_array().into_iter().flatten();
    let default = || of_list.clone().find(|entry| entry["name"] == "default");
    let text = template.as_str().or_else(|| default()?["template"].as_str());
    text.map(str::to_owned)
}

/// A special token is a string, or an object with the string as its content.
fn special_tokens(config: &serde_json::Value) -> Vec<(String, String)> {
    let token = |name: &str| {
        let token = &config[name];
        let text = token.as_str().or_else(|| token["content"].as_str())?;
        Some((name.to_owned(), text.to_owned()))
    };
    SPECIAL_TOKENS.into_iter().filter_map(token).collect()
}

impl std::fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ChatTemplate({})", self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(serde::Deserialize)]
    struct Golden {
        tokens: std::collections::BTreeMap<String, String>,
        templates: std::collections::BTreeMap<String, String>,
        cases: Vec<Case>,
    }

    #[derive(serde::Deserialize)]
    struct Case {
        template: String,
        messages: Vec<Value>,
        add_generation_prompt: bool,
        others: Value,
        text: Option<String>,
        answers: Option<Vec<(usize, usize)>>,
        error: Option<String>,
    }

    fn golden() -> Golden {
        serde_json::from_str(include_str!("../../golden/chat_templates.json")).unwrap()
    }

    fn template(golden: &Golden, name: &str) -> ChatTemplate {
        let tokens = golden.tokens.clone().into_iter().collect();
        ChatTemplate::parse(name, &golden.templates[name], tokens, Date::FIXED).unwrap()
    }

    fn messages(values: &[Value]) -> Vec<Message> {
        values.iter().map(|value| Message::from_value(value.clone()).unwrap()).collect()
    }

    fn conversation(turns: &[(&str, &str)]) -> Vec<Message> {
        turns.iter().map(|(role, content)| Message::new(role, content)).collect()
    }

    #[test]
    fn texts_equal_those_of_transformers() {
        let golden = golden();
        assert!(golden.cases.len() >= 30);
        for (index, case) in golden.cases.iter().enumerate() {
            let others: Vec<_> = case.others.try_iter().unwrap().collect();
            let others: Vec<_> = others
                .iter()
                .map(|key| (key.to_string(), case.others.get_item(key).unwrap()))
                .collect();
            let template = template(&golden, &case.template);
            let messages = messages(&case.messages);
            let rendered = template.render_with(&messages, &others, case.add_generation_prompt);
            let place = format!("case {index}, {}", case.template);
            match (&case.text, &case.error) {
                (Some(text), _) => assert_eq!(&rendered.expect(&place), text, "{place}"),
                (None, error) => {
                    let refused = rendered.expect_err(&place).to_string();
                    assert!(refused.contains(error.as_deref().unwrap()), "{place}: {refused}");
                }
            }
            if let Some(answers) = &case.answers {
                let rendered = template.render_answers(&messages, &others).unwrap();
                let found: Vec<_> = rendered.answers.iter().map(|r| (r.start, r.end)).collect();
                assert_eq!(&found, answers, "{place}");
            }
        }
    }

    #[test]
    fn answers_are_what_the_turns_of_the_assistant_add() {
        let golden = golden();
        let turns = conversation(&[
            ("user", "1?"),
            ("assistant", "one"),
            ("user", "2?"),
            ("assistant", "two"),
        ]);
        let answers = |name: &str| {
            let Rendered { text, answers } = template(&golden, name).render_answers(&turns, &[])?;
            Ok(answers.into_iter().map(|range| text[range].to_owned()).collect::<Vec<_>>())
        };
        let expect = |name, expected: [&str; 2]| {
            assert_eq!(
                answers(name).map_err(|e: ChatError| e.to_string()),
                Ok(expected.map(str::to_owned).to_vec()),
                "{name}"
            );
        };
        expect("chatml", ["one<|im_end|>\n", "two<|im_end|>\n"]);
        expect("llama-3", ["one<|eot_id|>", "two<|eot_id|>"]);
        expect("mistral", [" one</s>", " two</s>"]);
        expect("gemma-2", ["one<end_of_turn>\n", "two<end_of_turn>\n"]);
        expect("generation", ["one</s>", "two</s>"]);
    }

    #[test]
    fn a_template_that_rewrites_earlier_turns_is_refused() {
        let golden = golden();
        let turns = [
            ("system", "s"),
            ("user", "1?"),
            ("assistant", "one"),
            ("user", "2?"),
            ("assistant", "two"),
        ];
        let template = template(&golden, "mistral-last");
        let refused = template.render_answers(&conversation(&turns), &[]).unwrap_err().to_string();
        assert!(refused.contains("one answer"), "{refused}");
    }

    #[test]
    fn hostile_templates_end_with_an_error() {
        let parse = |source: &str| ChatTemplate::parse("t", source, Vec::new(), Date::FIXED);
        for invalid in ["{% for %}", "{{", "{% generation %}", "{{ x | unknown_filter }"] {
            assert!(matches!(parse(invalid), Err(ChatError::Invalid { .. })), "{invalid}");
        }
        let endless =
            "{% for a in range(10000) %}{% for b in range(10000) %}{{ b }}{% endfor %}{% endfor %}";
        let deep = "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}";
        for source in [endless, deep, "{{ messages.missing.field }}", "{% include 'x' %}"] {
            let refused = parse(source).unwrap().render(&[Message::new("user", "x")], true);
            let refused = refused.unwrap_err().to_string();
            assert!(!refused.contains('\n'), "{refused}");
        }
    }

    #[test]
    fn a_message_may_not_contain_the_marks_of_answers() {
        let template = template(&golden(), "generation");
        let refused = template.render(&[Message::new("assistant", "a\u{fdd1}b")], false);
        assert!(matches!(refused, Err(ChatError::Marker { code: 0xfdd1 })));
    }
}

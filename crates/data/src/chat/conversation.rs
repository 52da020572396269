//! Conversations of a data set, one JSON object or row of Parquet each, in the forms that data sets
//! are published in.
//!
//! | form | fields |
//! |---|---|
//! | OpenAI | `messages`: a list of `role` and `content` |
//! | ShareGPT | `conversations`: a list of `from` and `value`; a `system` field comes first |
//! | Alpaca | `instruction`, `input` (may be empty), `output`; a `system` field comes first |
//! | TRL | `prompt` and `completion`: texts, or lists of messages |
//!
//! The fields tell which form it is. `tools` reach the template, as a list or as its JSON text.

use minijinja::value::{Value, ValueKind};

use super::Message;
use super::message::ASSISTANT;

/// Authors in ShareGPT's data and the roles they are.
const AUTHORS: [(&str, &str); 9] = [
    ("human", "user"),
    ("user", "user"),
    ("gpt", ASSISTANT),
    ("assistant", ASSISTANT),
    ("model", ASSISTANT),
    ("chatgpt", ASSISTANT),
    ("system", "system"),
    ("tool", "tool"),
    ("observation", "tool"),
];

/// A conversation, with the other values that its template may read.
#[derive(Debug, Clone)]
pub struct Conversation {
    /// Turns, in order.
    pub messages: Vec<Message>,
    /// Names and values, such as `tools`.
    pub others: Vec<(String, Value)>,
}

impl Conversation {
    /// Conversation of a JSON object, or why it is none.
    pub fn parse(json: &str) -> Result<Self, String> {
        let row = parse_row(json)?;
        let mut messages: Vec<Message> = text(&row, "system")
            .filter(|system| !system.is_empty())
            .map(|system| Message::new("system", &system))
            .into_iter()
            .collect();
        if let Some(list) = field(&row, "messages").or_else(|| field(&row, "conversations")) {
            messages.extend(turns(&list)?);
        } else if let Some(instruction) = text(&row, "instruction") {
            messages.extend(instructed(&row, &instruction)?);
        } else if let Some(completion) = field(&row, "completion") {
            let prompt = field(&row, "prompt").ok_or("it has a completion and no prompt")?;
            for (name, value, role) in
                [("prompt", prompt, "user"), ("completion", completion, ASSISTANT)]
            {
                let turns = messages_of(&value, role).map_err(|r| format!("{name}: {r}"))?;
                messages.extend(turns);
            }
        } else {
            let names: Vec<_> = row.try_iter().into_iter().flatten().collect();
            let names: Vec<_> = names.iter().map(Value::to_string).take(8).collect();
            let names = names.join(", ");
            let has = |name| field(&row, name).is_some();
            let hint = match (has("chosen"), has("rejected")) {
                (true, true) => "; pairs are for finetune.method = \"dpo\"",
                _ => "",
            };
            return Err(format!(
                "it has none of messages, conversations, instruction and completion, but \
                 {names}{hint}"
            ));
        }
        Ok(Self { messages, others: others(&row) })
    }
}

/// Object of a line, or why it is none.
pub(super) fn parse_row(json: &str) -> Result<Value, String> {
    let row: Value = serde_json::from_str(json).map_err(|error| {
        let is_list = json.trim_start().starts_with('[');
        let hint = "; write each element of the list on a line of its own";
        format!("{error}{}", if is_list { hint } else { "" })
    })?;
    if row.kind() != ValueKind::Map {
        return Err("it is no object".to_owned());
    }
    Ok(row)
}

/// Values that a template may read beside the messages.
pub(super) fn others(row: &Value) -> Vec<(String, Value)> {
    let tools = field(row, "tools").map(|tools| ("tools".to_owned(), parsed(tools)));
    tools.into_iter().collect()
}

/// Messages of a list, or the one message of a text.
pub(super) fn messages_of(value: &Value, role: &str) -> Result<Vec<Message>, String> {
    match value.kind() {
        ValueKind::String => Ok(vec![Message::new(role, value.as_str().unwrap_or_default())]),
        _ => turns(value),
    }
}

/// Turns of a list, in OpenAI's or in ShareGPT's fields.
pub(super) fn turns(list: &Value) -> Result<Vec<Message>, String> {
    if list.kind() != ValueKind::Seq {
        return Err("its turns are no list".to_owned());
    }
    let items = list.try_iter().map_err(|error| error.to_string())?;
    items
        .enumerate()
        .map(|(index, item)| turn(item).map_err(|r| format!("turn {index} {r}")))
        .collect()
}

fn turn(item: Value) -> Result<Message, String> {
    if let Some(author) = text(&item, "from") {
        let known = AUTHORS.iter().find(|(name, _)| *name == author);
        let (_, role) = known.ok_or_else(|| {
            let names: Vec<_> = AUTHORS.iter().map(|(name, _)| *name).collect();
            format!("is from {author:?}, which is none of {}", names.join(", "))
        })?;
        let content = text(&item, "value").ok_or("has no text in value")?;
        return Ok(Message::new(role, &content));
    }
    let message = Message::from_value(item).ok_or("has neither role nor from")?;
    let content = field(message.value(), "content");
    match content.as_ref().map(Value::kind) {
        Some(ValueKind::String) => Ok(message),
        Some(ValueKind::Seq) => Ok(message.with_content(&joined(&content.unwrap_or_default())?)),
        Some(kind) => Err(format!("has a content that is no text but a {kind}")),
        // The model calls a tool and says nothing.
        None if field(message.value(), "tool_calls").is_some() => Ok(message),
        None => Err("has no content".to_owned()),
    }
}

/// Text of a content in parts, as `{"type": "text", "text": "Hello"}` is one.
fn joined(parts: &Value) -> Result<String, String> {
    let parts = parts.try_iter().map_err(|error| error.to_string())?;
    let part = |part: Value| {
        let of_object = || text(&part, "text");
        let found = part.as_str().map(str::to_owned).or_else(of_object);
        found.ok_or_else(|| {
            let kind = text(&part, "type").unwrap_or_else(|| part.kind().to_string());
            format!("has a part of type {kind:?} in its content, and only text is read")
        })
    };
    parts.map(part).collect()
}

/// An instruction with its input as the user's turn, and the output as the answer.
fn instructed(row: &Value, instruction: &str) -> Result<[Message; 2], String> {
    let output = text(row, "output").ok_or("it has an instruction and no output")?;
    let input = text(row, "input").filter(|input| !input.is_empty());
    let prompt =
        input.map_or_else(|| instruction.to_owned(), |input| format!("{instruction}\n{input}"));
    Ok([Message::new("user", &prompt), Message::new(ASSISTANT, &output)])
}

/// Field of an object; none for null.
pub(super) fn field(row: &Value, name: &str) -> Option<Value> {
    row.get_attr(name).ok().filter(|value| !value.is_undefined() && !value.is_none())
}

/// Text of a field.
pub(super) fn text(row: &Value, name: &str) -> Option<String> {
    field(row, name)?.as_str().map(str::to_owned)
}

/// A value that may be the JSON text of one.
fn parsed(value: Value) -> Value {
    let json = value.as_str().and_then(|text| serde_json::from_str(text).ok());
    json.unwrap_or(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(json: &str) -> Vec<(String, String)> {
        let messages = Conversation::parse(json).unwrap().messages;
        let pair = |m: &Message| (m.role().to_owned(), m.content().unwrap());
        messages.iter().map(pair).collect()
    }

    #[test]
    fn three_forms_of_one_conversation_are_equal() {
        let openai = of(r#"{"messages": [{"role": "system", "content": "s"},
            {"role": "user", "content": "a\nb"}, {"role": "assistant", "content": "c"}]}"#);
        let sharegpt = of(r#"{"id": 1, "system": "s", "conversations": [
            {"from": "human", "value": "a\nb"}, {"from": "gpt", "value": "c"}]}"#);
        let alpaca =
            of(r#"{"instruction": "a", "input": "b", "output": "c", "system": "s", "text": "x"}"#);
        assert_eq!(openai, sharegpt);
        assert_eq!(openai, alpaca);
        let without = of(r#"{"instruction": "a", "input": "", "output": "c"}"#);
        assert_eq!(without[0], ("user".to_owned(), "a".to_owned()));
    }

    #[test]
    fn prompts_and_completions_are_texts_or_messages() {
        let texts = of(r#"{"prompt": "a", "completion": "b"}"#);
        let messages = of(r#"{"prompt": [{"role": "user", "content": "a"}],
            "completion": [{"role": "assistant", "content": "b"}]}"#);
        assert_eq!(texts, messages);
        assert_eq!(texts[1], ("assistant".to_owned(), "b".to_owned()));
    }

    #[test]
    fn text_parts_are_joined_and_a_call_of_a_tool_needs_no_content() {
        let parts = of(r#"{"messages": [{"role": "user", "content":
            [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]}"#);
        assert_eq!(parts, [("user".to_owned(), "ab".to_owned())]);
        let call = r#"{"messages": [{"role": "assistant", "content": null, "tool_calls": [1]}]}"#;
        assert_eq!(Conversation::parse(call).unwrap().messages[0].content(), None);
    }

    #[test]
    fn tools_are_a_list_or_its_text() {
        for tools in [r#"[{"name": "f"}]"#, r#""[{\"name\": \"f\"}]""#] {
            let json = format!(r#"{{"messages": [], "tools": {tools}}}"#);
            let others = Conversation::parse(&json).unwrap().others;
            assert_eq!(others[0].1.len(), Some(1));
        }
    }

    #[test]
    fn other_objects_are_refused_with_the_reason() {
        let reason = |json: &str| Conversation::parse(json).unwrap_err();
        assert!(reason("[1]").contains("no object"));
        assert!(reason("[\n").contains("line of its own"));
        assert!(reason(r#"{"text": "x"}"#).contains("but text"));
        assert!(reason(r#"{"messages": {}}"#).contains("no list"));
        assert!(reason(r#"{"messages": [{"content": "x"}]}"#).contains("turn 0 has neither"));
        for content in ["", r#", "content": null"#] {
            let json = format!(r#"{{"messages": [{{"role": "user"{content}}}]}}"#);
            assert_eq!(reason(&json), "turn 0 has no content");
        }
        let number = r#"{"messages": [{"role": "user", "content": 5}]}"#;
        assert_eq!(reason(number), "turn 0 has a content that is no text but a number");
        let image = r#"{"messages": [{"role": "user", "content": [{"type": "image"}]}]}"#;
        assert!(reason(image).contains("part of type \"image\""));
        assert!(reason(r#"{"prompt": "x", "text": "y"}"#).contains("but prompt, text"));
        assert!(reason(r#"{"prompt": "x", "chosen": "y", "rejected": "z"}"#).contains("dpo"));
        assert!(reason(r#"{"completion": "x"}"#).contains("no prompt"));
        let stranger = r#"{"conversations": [{"from": "cat", "value": "x"}]}"#;
        assert!(reason(stranger).contains("from \"cat\""));
        assert!(reason(r#"{"instruction": "x"}"#).contains("no output"));
    }
}

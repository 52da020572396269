//! Contexts and continuations of a question: text, choices and answer of a document, after a
//! description and examples.

use minijinja::Value;
use minijinja::value::Serde;

use super::documents::Document;
use super::python_text::{Literal, parse_list};
use super::settings::{Field, Fields};
use super::template::Template;

/// Error of a document: the key of the task, and the problem.
pub(super) type FieldError = (&'static str, String);

/// A field, compiled for the documents of a split.
#[derive(Debug)]
enum Source {
    /// A field of the document.
    Column(String),
    Template(Box<Template>),
    Fixed(serde_json::Value),
}

/// Value of a field in a document.
enum Found {
    Value(serde_json::Value),
    Rendered(String),
}

impl Source {
    fn new(field: &Field, columns: &Document, key: &'static str) -> Result<Self, FieldError> {
        Ok(match field {
            Field::Named(name) if columns.contains_key(name) => Self::Column(name.clone()),
            Field::Named(text) => {
                Self::Template(Box::new(Template::compile(text).map_err(|reason| (key, reason))?))
            }
            Field::Fixed(value) => Self::Fixed(value.to_json()),
        })
    }

    fn find(&self, document: &Record<'_>) -> Result<Found, String> {
        Ok(match self {
            Self::Column(name) => Found::Value(document.fields[name].clone()),
            Self::Template(template) => Found::Rendered(template.render(&document.value)?),
            Self::Fixed(value) => Found::Value(value.clone()),
        })
    }
}

/// A document, also as templates read it.
pub(super) struct Record<'a> {
    fields: &'a Document,
    value: Value,
}

impl<'a> Record<'a> {
    pub(super) fn new(fields: &'a Document) -> Self {
        Self { fields, value: Value::from(Serde(fields)) }
    }
}

/// Text of a question, or the number of the right one of several texts.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Text {
    Question(String),
    Number(usize),
}

/// Right answer of a document.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Answer {
    /// Number of a choice.
    Number(i64),
    Text(String),
    Several(Vec<Literal>),
}

/// Content of a question.
#[derive(Debug)]
pub(super) struct Content {
    pub(super) text: Text,
    pub(super) choices: Vec<String>,
    pub(super) answer: Answer,
}

/// Reads questions of documents.
#[derive(Debug)]
pub(super) struct QuestionReader {
    text: Source,
    choice: Source,
    target: Source,
    target_delimiter: String,
}

impl QuestionReader {
    /// Reader for documents with the fields of `columns`.
    pub(super) fn new(fields: &Fields, columns: &Document) -> Result<Self, FieldError> {
        Ok(Self {
            text: Source::new(&fields.text, columns, "doc_to_text")?,
            choice: Source::new(&fields.choice, columns, "doc_to_choice")?,
            target: Source::new(&fields.target, columns, "doc_to_target")?,
            target_delimiter: fields.target_delimiter.clone(),
        })
    }

    /// Content of a document's question.
    pub(super) fn read(&self, document: &Record<'_>) -> Result<Content, FieldError> {
        let text = self.text.find(document).and_then(text_of);
        let choices = self.choice.find(document).and_then(|found| choices_of(&found));
        let answer = self.target.find(document).and_then(answer_of);
        Ok(Content {
            text: text.map_err(|reason| ("doc_to_text", reason))?,
            choices: choices.map_err(|reason| ("doc_to_choice", reason))?,
            answer: answer.map_err(|reason| ("doc_to_target", reason))?,
        })
    }

    /// Text before a choice.
    pub(super) fn target_delimiter(&self) -> &str {
        &self.target_delimiter
    }

    /// An answered question, as it stands before another one.
    pub(super) fn example(&self, document: &Record<'_>) -> Result<String, FieldError> {
        let Content { text, choices, answer } = self.read(document)?;
        let choice = |number: i64| {
            let found = usize::try_from(number).ok().and_then(|number| choices.get(number));
            found.cloned().ok_or(("doc_to_target", format!("there is no choice {number}")))
        };
        // With several texts, the text is a choice and the answer follows all of them.
        let (text, answer) = match (text, answer) {
            (Text::Question(text), Answer::Number(number)) => (text, choice(number)?),
            (Text::Number(number), answer) => {
                let number = i64::try_from(number).unwrap_or(i64::MAX);
                (choice(number)?, answer.to_text()?)
            }
            (Text::Question(text), answer) => (text, answer.to_text()?),
        };
        Ok(if answer.is_empty() { text } else { text + &self.target_delimiter + &answer })
    }
}

impl Answer {
    /// The answer as a text; the first of several.
    pub(super) fn to_text(&self) -> Result<String, FieldError> {
        match self {
            Self::Number(number) => Ok(number.to_string()),
            Self::Text(text) => Ok(text.clone()),
            Self::Several(all) => match all.first() {
                Some(Literal::Text(text)) => Ok(text.clone()),
                _ => Err(("doc_to_target", "the first of several answers is not a text".into())),
            },
        }
    }

    /// Numbers of the choices that are right.
    pub(super) fn numbers(&self, choices: &[String]) -> Vec<usize> {
        let within = |number: i64| usize::try_from(number).ok().filter(|at| *at < choices.len());
        let named = |text: &String| choices.iter().position(|choice| choice == text);
        match self {
            Self::Number(number) => within(*number).into_iter().collect(),
            Self::Text(text) => named(text).into_iter().collect(),
            Self::Several(all) => {
                let number = |literal: &Literal| match literal {
                    Literal::Integer(number) => within(*number),
                    _ => None,
                };
                all.iter().filter_map(number).collect()
            }
        }
    }
}

/// Whether a text is a number of digits.
fn number(text: &str) -> Option<i64> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| text.parse().ok())?
}

fn text_of(found: Found) -> Result<Text, String> {
    let as_number = |number: i64| usize::try_from(number).map(Text::Number);
    match found {
        Found::Rendered(text) => Ok(match number(&text).map(as_number) {
            Some(Ok(number)) => number,
            _ => Text::Question(text),
        }),
        Found::Value(serde_json::Value::String(text)) => Ok(Text::Question(text)),
        Found::Value(value) => {
            let number = value.as_i64().and_then(|number| as_number(number).ok());
            number.ok_or_else(|| format!("{value} is neither a text nor the number of one"))
        }
    }
}

fn choices_of(found: &Found) -> Result<Vec<String>, String> {
    let wrong = |list: &dyn std::fmt::Display| format!("{list} is not a list of texts");
    let choices: Option<Vec<String>> = match found {
        Found::Rendered(text) => {
            let list = parse_list(text).ok_or_else(|| wrong(text))?;
            let text = |item: Literal| match item {
                Literal::Text(text) => Some(text),
                _ => None,
            };
            list.into_iter().map(text).collect()
        }
        Found::Value(value) => {
            let text = |item: &serde_json::Value| item.as_str().map(str::to_owned);
            value.as_array().and_then(|items| items.iter().map(text).collect())
        }
    };
    let choices = choices.ok_or_else(|| match found {
        Found::Rendered(text) => wrong(text),
        Found::Value(value) => wrong(value),
    })?;
    if choices.is_empty() { Err("there are no choices".to_owned()) } else { Ok(choices) }
}

fn answer_of(found: Found) -> Result<Answer, String> {
    let literal = |value: &serde_json::Value| match value {
        serde_json::Value::String(text) => Literal::Text(text.clone()),
        other => other.as_i64().map_or(Literal::Other, Literal::Integer),
    };
    match found {
        Found::Rendered(text) => Ok(if let Some(number) = number(&text) {
            Answer::Number(number)
        } else if let Some(list) = parse_list(&text).filter(|_| text.starts_with('[')) {
            Answer::Several(list)
        } else {
            Answer::Text(text)
        }),
        Found::Value(serde_json::Value::String(text)) => Ok(Answer::Text(text)),
        Found::Value(serde_json::Value::Bool(value)) => Ok(Answer::Number(value.into())),
        Found::Value(serde_json::Value::Array(items)) => {
            Ok(Answer::Several(items.iter().map(literal).collect()))
        }
        Found::Value(value) => {
            let number = value.as_i64().map(Answer::Number);
            number.ok_or_else(|| format!("{value} is neither a choice nor its number"))
        }
    }
}

/// Text at the start of a prompt.
#[derive(Debug)]
pub(super) struct Description(Source);

impl Description {
    pub(super) fn new(field: &Field, columns: &Document) -> Result<Self, FieldError> {
        Source::new(field, columns, "description").map(Self)
    }

    pub(super) fn render(&self, document: &Record<'_>) -> Result<String, FieldError> {
        match self.0.find(document).map_err(|reason| ("description", reason))? {
            Found::Rendered(text) | Found::Value(serde_json::Value::String(text)) => Ok(text),
            Found::Value(value) => Err(("description", format!("{value} is not a text"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tasks::yaml::Yaml;

    fn named(text: &str) -> Field {
        Field::Named(text.to_owned())
    }

    fn read(
        fields: &Fields,
        json: &str,
    ) -> (Result<Content, FieldError>, Result<String, FieldError>) {
        let document: Document = serde_json::from_str(json).unwrap();
        let reader = QuestionReader::new(fields, &document).unwrap();
        let record = Record::new(&document);
        (reader.read(&record), reader.example(&record))
    }

    #[test]
    fn columns_templates_and_fixed_values_make_questions() {
        let letters = ["A", "B"].map(|letter| Yaml::Text(letter.to_owned())).to_vec();
        let fields = Fields {
            text: named("Q: {{q}}\nA:"),
            choice: Field::Fixed(Yaml::List(letters)),
            target: named("answer"),
            target_delimiter: " ".to_owned(),
        };
        let (content, example) = read(&fields, r#"{"q": "1?", "answer": 1}"#);
        let content = content.unwrap();
        assert_eq!(content.text, Text::Question("Q: 1?\nA:".to_owned()));
        assert_eq!((content.answer.numbers(&content.choices), content.choices.len()), (vec![1], 2));
        assert_eq!(example.unwrap(), "Q: 1?\nA: B");
        // A column's text is a choice by name, not by number; a template's digits are a number.
        for (target, json, answers) in [
            ("answer", r#"{"q": "", "answer": "1"}"#, &[][..]),
            ("answer", r#"{"q": "", "answer": "B"}"#, &[1]),
            ("{{answer}}", r#"{"q": "", "answer": "1"}"#, &[1]),
            ("{{[0, 5]}}", r#"{"q": ""}"#, &[0]),
            ("answer", r#"{"q": "", "answer": [0, 1]}"#, &[0, 1]),
            ("answer", r#"{"q": "", "answer": true}"#, &[1]),
            ("answer", r#"{"q": "", "answer": 7}"#, &[]),
        ] {
            let fields = Fields { target: named(target), ..fields.clone() };
            let content = read(&fields, json).0.unwrap();
            assert_eq!(content.answer.numbers(&content.choices), answers, "{target} {json}");
        }
        let (_, example) = read(&fields, r#"{"q": "", "answer": 7}"#);
        assert_eq!(example.unwrap_err().0, "doc_to_target");
    }

    #[test]
    fn a_number_as_text_asks_for_one_of_several_texts() {
        let fields = Fields {
            text: named("{{label}}"),
            choice: named("{{[a + ' x', b + ' x']}}"),
            target: named("end"),
            target_delimiter: " ".to_owned(),
        };
        let json = r#"{"label": 1, "a": "it's", "b": "2", "end": "y"}"#;
        let (content, example) = read(&fields, json);
        let content = content.unwrap();
        assert_eq!((content.text, content.answer), (Text::Number(1), Answer::Text("y".to_owned())));
        assert_eq!(content.choices, ["it's x", "2 x"]);
        assert_eq!(example.unwrap(), "2 x y");
        let wrong = Fields { choice: named("{{a}}"), ..fields };
        assert_eq!(read(&wrong, json).0.unwrap_err().0, "doc_to_choice");
    }
}

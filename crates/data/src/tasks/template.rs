//! Templates of a task, rendered as lm-evaluation-harness renders them: Jinja with Python's methods
//! and Python's notation of values, and an error for whatever a document lacks.

use minijinja::syntax::SyntaxConfig;
use minijinja::value::ValueKind;
use minijinja::{Environment, Error, ErrorKind, State, UndefinedBehavior, Value, filters, tests};
use minijinja_contrib::pycompat;

use super::python_text::write_str;

/// Instructions that one rendering may take.
const FUEL: u64 = 10_000_000;

/// Name of the template inside its engine.
const NAME: &str = "task";

/// A compiled template.
#[derive(Debug)]
pub(super) struct Template(Environment<'static>);

impl Template {
    /// Compiles a template; the error is the engine's message.
    pub(super) fn compile(source: &str) -> Result<Self, String> {
        let mut engine = Environment::empty();
        let syntax = SyntaxConfig::builder().keep_trailing_newline(true).build();
        engine.set_syntax(syntax.map_err(|error| reason(&error))?);
        engine.set_undefined_behavior(UndefinedBehavior::Strict);
        engine.set_fuel(Some(FUEL));
        engine.set_unknown_method_callback(method);
        engine.set_formatter(|out, state, value| {
            if value.is_undefined() {
                return minijinja::escape_formatter(out, state, value);
            }
            let mut text = String::new();
            write_str(value, &mut text);
            out.write_str(&text).map_err(Error::from)
        });
        add_builtins(&mut engine);
        engine.add_template_owned(NAME, source.to_owned()).map_err(|error| reason(&error))?;
        Ok(Self(engine))
    }

    /// Renders it for a document; the error is the engine's message.
    pub(super) fn render(&self, document: &Value) -> Result<String, String> {
        let template = self.0.get_template(NAME).map_err(|error| reason(&error))?;
        template.render(document.clone()).map_err(|error| reason(&error))
    }
}

/// Filters and tests of Jinja that tasks use.
fn add_builtins(engine: &mut Environment<'_>) {
    engine.add_filter("capitalize", filters::capitalize);
    engine.add_filter("default", filters::default);
    engine.add_filter("first", filters::first);
    engine.add_filter("int", filters::int);
    engine.add_filter("join", filters::join);
    engine.add_filter("last", filters::last);
    engine.add_filter("length", filters::length);
    engine.add_filter("list", filters::list);
    engine.add_filter("lower", filters::lower);
    engine.add_filter("replace", filters::replace);
    engine.add_filter("title", filters::title);
    engine.add_filter("trim", filters::trim);
    engine.add_filter("upper", filters::upper);
    engine.add_test("defined", tests::is_defined);
    engine.add_test("none", tests::is_none);
    engine.add_test("string", tests::is_string);
}

/// Methods of Python: `index` of lists and strings beside those that chat templates have.
fn method(
    state: &mut State<'_, '_>,
    value: &Value,
    name: &str,
    args: &[Value],
) -> Result<Value, Error> {
    if let ("index", [searched]) = (name, args) {
        let position = match (value.as_str(), searched.as_str()) {
            (Some(text), Some(part)) => text.find(part).map(|at| text[..at].chars().count()),
            _ if value.kind() == ValueKind::Seq => {
                value.try_iter()?.position(|item| item == *searched)
            }
            _ => return Err(Error::from(ErrorKind::UnknownMethod)),
        };
        let missing = || {
            let message = format!("{searched} is not in {value}");
            Error::new(ErrorKind::InvalidOperation, message)
        };
        return position.map(Value::from).ok_or_else(missing);
    }
    pycompat::unknown_method_callback(state, value, name, args)
}

/// The engine's message in one line.
fn reason(error: &Error) -> String {
    let reason = error.detail().map_or_else(|| error.kind().to_string(), str::to_owned);
    reason.lines().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod unit_tests {
    use super::*;

    fn render(template: &str, document: &str) -> Result<String, String> {
        let document: serde_json::Value = serde_json::from_str(document).unwrap();
        Template::compile(template)?.render(&Value::from(minijinja::value::Serde(&document)))
    }

    #[test]
    fn templates_of_known_tasks_render_as_jinja2_renders_them() {
        let arc = r#"{"question": "Why?", "answerKey": "B",
            "choices": {"text": ["it's", "no"], "label": ["A", "B"]}}"#;
        let mmlu = r#"{"question": " What? \n", "choices": ["a", "b"], "answer": 1}"#;
        for (template, document, expected) in [
            ("Question: {{question}}\nAnswer:", arc, "Question: Why?\nAnswer:"),
            ("{{choices.label.index(answerKey)}}", arc, "1"),
            ("{{choices.text}}", arc, r#"["it's", 'no']"#),
            ("{{question.strip()}}\nA. {{choices[0]}}\nAnswer:", mmlu, "What?\nA. a\nAnswer:"),
            ("{{[choices[1], question.strip()]}}", mmlu, "['b', 'What?']"),
            ("{{ answer }} {{ answer == 1 }} {{none}}\n", mmlu, "1 True None\n"),
            ("{% for c in choices %}({{c | upper}}){% endfor %}", mmlu, "(A)(B)"),
            ("{% if answer is defined %}{{'abc'.index('c')}}{% endif %}", mmlu, "2"),
        ] {
            assert_eq!(render(template, document).as_deref(), Ok(expected), "{template}");
        }
    }

    #[test]
    fn what_is_missing_is_an_error() {
        for template in ["{{a}}", "{{b.c}}", "{{list.index(3)}}", "{{b | regex_replace('a', 'b')}}"]
        {
            render(template, r#"{"b": {}, "list": [1]}"#).unwrap_err();
        }
        Template::compile("{{ a").unwrap_err();
        let endless = "{% for a in range(100000) %}{% for b in list %}{% endfor %}{% endfor %}";
        render(endless, r#"{"list": [1, 2]}"#).unwrap_err();
    }
}

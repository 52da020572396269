//! Message of a conversation: a role, a content and whatever else a template may read.

use minijinja::Value;

/// Role of a model.
pub(crate) const ASSISTANT: &str = "assistant";

/// Roles that templates and data sets share.
pub(crate) const ROLES: [&str; 6] = ["system", "user", ASSISTANT, "tool", "developer", "function"];

/// One message.
#[derive(Debug, Clone)]
pub struct Message {
    role: String,
    value: Value,
}

impl Message {
    /// Message of a role, usually `system`, `user` or `assistant`.
    pub fn new(role: &str, content: &str) -> Self {
        let fields = [("role", Value::from(role)), ("content", Value::from(content))];
        Self { role: role.to_owned(), value: Value::from_pairs(fields) }
    }

    /// Message of an object with a `role`; a template sees all its fields.
    pub(crate) fn from_value(value: Value) -> Option<Self> {
        let role = value.get_attr("role").ok()?.as_str()?.to_owned();
        Some(Self { role, value })
    }

    /// The message with this text as its content.
    pub(crate) fn with_content(&self, content: &str) -> Self {
        let names = self.value.try_iter().into_iter().flatten();
        let fields = names.filter_map(|name| {
            let value = self.value.get_item(&name).ok()?;
            Some((name, value))
        });
        let others = fields.filter(|(name, _)| name.as_str() != Some("content"));
        let others = others.map(|(name, value)| (name.to_string(), value));
        let content = ("content".to_owned(), Value::from(content));
        let value = Value::from_pairs(others.chain([content]));
        Self { role: self.role.clone(), value }
    }

    /// Author of the message.
    pub fn role(&self) -> &str {
        &self.role
    }

    /// Text of the message; none if it has parts or no content.
    pub fn content(&self) -> Option<String> {
        Some(self.value.get_attr("content").ok()?.as_str()?.to_owned())
    }

    pub(crate) const fn value(&self) -> &Value {
        &self.value
    }
}

//! Errors of chat templates, each with a remedy.

use super::message::ROLES;

/// A chat template that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ChatError {
    /// The tokenizer folder has no template.
    #[error(
        "tokenizer {tokenizer} has no chat template (chat_template.jinja, or chat_template in \
         tokenizer_config.json); give the folder of a chat model's tokenizer, or choose a template \
         with finetune.chat_template = \"chatml\" or a path"
    )]
    Missing {
        /// Folder of the tokenizer, or `byte`.
        tokenizer: String,
    },
    /// The template is not valid, or asks for what no chat template has.
    #[error("{name} is no chat template that can be rendered: {reason}")]
    Invalid {
        /// Path of the template, or its name.
        name: String,
        /// Message of the template engine.
        reason: String,
    },
    /// The template refuses the conversation.
    #[error("the chat template {name} refuses the conversation: {reason}")]
    Refused {
        /// Path of the template, or its name.
        name: String,
        /// The template's own message, or that of the template engine.
        reason: String,
    },
    /// A turn has a role that the template does not name.
    #[error(
        "turn {turn} has the role {role:?}, which is none of {} and is not named in the chat \
         template",
        ROLES.join(", ")
    )]
    Role {
        /// Turn, from 0.
        turn: usize,
        /// Its role.
        role: String,
    },
    /// The rendered answers cannot be found in the text.
    #[error(
        "the chat template {name} writes earlier turns in another form once later ones follow, so \
         the answers cannot be separated; give conversations of one answer, mark answers \
         in the template with {{% generation %}}, or set finetune.loss = \"all\""
    )]
    Rewrites {
        /// Path of the template, or its name.
        name: String,
    },
    /// A message contains a character that marks answers.
    #[error("a message contains U+{code:X}, which is not a character of any text; remove it")]
    Marker {
        /// Code point.
        code: u32,
    },
}

/// The message of the template engine, with the messages behind it, in one line.
pub(super) fn reason(error: &minijinja::Error) -> String {
    let mut reason = error.detail().map_or_else(|| error.kind().to_string(), str::to_owned);
    if let Some(line) = error.line() {
        reason = format!("{reason} (line {line})");
    }
    reason.lines().collect::<Vec<_>>().join(" ")
}

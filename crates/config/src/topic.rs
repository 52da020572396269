//! Declarations of topics: named choices, tables of keys, and the entries of lists.
//!
//! `topic!` declares a struct of the recipe and its keys at once. The doc comment of a field is
//! the meaning of its key in help and reference; the Rust type decides the value type and the
//! conversion ([`crate::field::Field`]); the default is written as in a recipe. Everything after
//! the default is a method of [`crate::key::Key`].
//!
//! ```text
//! topic! {
//!     /// Checkpoints. Never change a bit of the result.
//!     pub struct Checkpoint at checkpoint, table "checkpoint", layout() {
//!         /// Number of checkpoints to keep.
//!         keep: usize = 2, integer(1, 1_000_000);
//!         /// Mean time between failures in seconds.
//!         mtbf: Seconds = 86400.0, float(Open(0.0), Closed(31_536_000.0));
//!     }
//! }
//! ```
//!
//! | item | meaning |
//! |---|---|
//! | `field: T = 4, …;` | a key with the name of its field |
//! | `field as leaf: T = 4, …;` | a key with another name |
//! | `… = none, …;` | a key without default |
//! | `… = ("= a / b", function), …;` | a default derived from keys further up, with its formula |
//! | `part field: T;` | a struct with keys of the same table, at this place of the table |
//! | `field field: T;` | a field without a key |
//! | `key leaf at path: T = …;` | a key whose field is elsewhere in the recipe |
//!
//! The struct is `at` a path of the recipe. It is a `table` of its own, or its keys are `among`
//! those of another one.

/// Declares enums of named choices. Name and variant are on one line, so parsing, printing and the
/// list of allowed values agree.
macro_rules! choices {
    ($(
        $(#[$doc:meta])*
        $choice:ident { $($(#[$variant_doc:meta])* $variant:ident = $name:literal,)+ }
    )+) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum $choice { $($(#[$variant_doc])* $variant,)+ }

        impl $choice {
            /// Names in a recipe, in order of declaration.
            pub const NAMES: &'static [&'static str] = &[$($name),+];

            /// Name in a recipe.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)+ }
            }

            /// The choice with this name.
            pub fn from_name(name: &str) -> Option<Self> {
                match name { $($name => Some(Self::$variant),)+ _ => None }
            }
        }

        impl std::fmt::Display for $choice {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.name())
            }
        }

        $crate::field::field!(
            $choice: $crate::value_type::ValueType::Choice(Self::NAMES),
            blank [$(Self::$variant),+][0],
            to |choice| $crate::value::Value::Text(choice.name().to_owned()),
            from |v| Self::from_name(v.as_text()).expect("the value type accepted it")
        );
    )+};
}
pub(crate) use choices;

/// Declares a struct of the recipe with its keys; the syntax is that of this module's head.
macro_rules! topic {
    (
        $(#[doc = $text:literal])+
        $(#[derive($($derive:ident),+)])?
        pub struct $name:ident at $($path:ident).+, $kind:ident $section:literal
        $(, $method:ident $arguments:tt)* { $($items:tt)* }
    ) => {
        impl $name {
            fn of(recipe: &$crate::topics::Recipe) -> &Self {
                &recipe.$($path).+
            }

            fn of_mut(recipe: &mut $crate::topics::Recipe) -> &mut Self {
                &mut recipe.$($path).+
            }
        }

        $crate::topic::topic!(@$kind $name $section [$($text),+] [$(.$method $arguments)*]);
        $crate::topic::topic!(
            @items $name $section
            [$(#[doc = $text])+ $(#[derive($($derive),+)])?] [] [] $($items)*
        );
    };

    (@table $name:ident $section:literal [$($text:literal),+] [$($modifiers:tt)*]) => {
        impl $name {
            pub(crate) const TABLE: $crate::key::Section =
                $crate::key::Section::new($section, concat!($($text),+), Self::KEYS)
                $($modifiers)*;
        }
    };
    (@among $($rest:tt)*) => {};

    (
        @items $name:ident $section:literal [$($attributes:tt)*]
        [$([$($docs:tt)+] $field:ident: $type:ty;)*] [$($rows:tt)*]
    ) => {
        $($attributes)*
        #[derive(Debug, Clone, PartialEq)]
        pub struct $name { $($($docs)+ pub $field: $type,)* }

        impl $crate::field::Blank for $name {
            const BLANK: Self = Self { $($field: <$type as $crate::field::Blank>::BLANK),* };
        }

        impl $name {
            const PARTS: &'static [&'static [$crate::key::Key]] = &[$($rows)*];
            /// Its keys, in the order of the table.
            pub(crate) const KEYS: &'static [$crate::key::Key] =
                &$crate::key::join::<{ $crate::key::count(Self::PARTS) }>(Self::PARTS);
        }
    };
    (
        @items $name:ident $section:literal $attributes:tt [$($fields:tt)*] [$($rows:tt)*]
        $(#[doc = $text:literal])+ part $field:ident: $type:ty; $($rest:tt)*
    ) => {
        $crate::topic::topic!(
            @items $name $section $attributes
            [$($fields)* [$(#[doc = $text])+] $field: $type;]
            [$($rows)* <$type>::KEYS,]
            $($rest)*
        );
    };
    (
        @items $name:ident $section:literal $attributes:tt [$($fields:tt)*] $rows:tt
        $(#[doc = $text:literal])+ field $field:ident: $type:ty; $($rest:tt)*
    ) => {
        $crate::topic::topic!(
            @items $name $section $attributes
            [$($fields)* [$(#[doc = $text])+] $field: $type;]
            $rows $($rest)*
        );
    };
    (
        @items $name:ident $section:literal $attributes:tt $fields:tt [$($rows:tt)*]
        $(#[doc = $text:literal])+ key $leaf:ident at $($path:ident).+: $type:ty = $default:tt
        $(, $method:ident $arguments:tt)*; $($rest:tt)*
    ) => {
        $crate::topic::topic!(
            @items $name $section $attributes $fields
            [$($rows)* &[$crate::topic::topic!(
                @key [$section $leaf] [$($text),+] $type, $default,
                |recipe| &recipe.$($path).+,
                |recipe| &mut recipe.$($path).+
            ) $(.$method $arguments)*],]
            $($rest)*
        );
    };
    (
        @items $name:ident $section:literal $attributes:tt [$($fields:tt)*] [$($rows:tt)*]
        $(#[doc = $text:literal])+ $field:ident $(as $leaf:ident)?: $type:ty = $default:tt
        $(, $method:ident $arguments:tt)*; $($rest:tt)*
    ) => {
        $crate::topic::topic!(
            @items $name $section $attributes
            [$($fields)* [$(#[doc = $text])+] $field: $type;]
            [$($rows)* &[$crate::topic::topic!(
                @key [$section $field $($leaf)?] [$($text),+] $type, $default,
                |recipe| &$name::of(recipe).$field,
                |recipe| &mut $name::of_mut(recipe).$field
            ) $(.$method $arguments)*],]
            $($rest)*
        );
    };

    (
        @key [$($place:tt)+] [$($text:literal),+] $type:ty, $default:tt,
        |$read:ident| $field:expr, |$write:ident| $target:expr
    ) => {
        $crate::key::Key::new(
            $crate::topic::topic!(@name $($place)+),
            concat!($($text),+),
            <$type as $crate::field::Field>::TYPE,
            $crate::topic::topic!(@default $type, $default),
            |$read| $crate::topic::topic!(@value $type, $default, $field),
            |$write, value| *$target = <$type as $crate::field::Field>::from_value(value),
        )
    };

    (@name $section:literal $leaf:ident) => { concat!($section, ".", stringify!($leaf)) };
    (@name $section:literal $field:ident $leaf:ident) => {
        concat!($section, ".", stringify!($leaf))
    };

    (@default $type:ty, none) => { $crate::key::Default::Nothing };
    (@default $type:ty, ($text:literal, $from:expr)) => {
        $crate::key::Default::Derived {
            text: $text,
            from: |recipe| {
                let from: fn(&$crate::topics::Recipe) -> $type = $from;
                $crate::field::Field::to_value(&from(recipe))
            },
        }
    };
    (@default $type:ty, $fixed:tt) => { $crate::key::Default::Fixed(stringify!($fixed)) };

    (@value $type:ty, none, $field:expr) => { $crate::field::Field::present($field) };
    (@value $type:ty, $default:tt, $field:expr) => {
        Some($crate::field::Field::to_value($field))
    };
}
pub(crate) use topic;

/// Declares the entry of a list: a table with named cells, and the struct that it becomes. A cell
/// is `required`, absent by default (`none`), or has a default in parentheses, which is printed
/// only where it is `shown`.
macro_rules! entry {
    (
        $(#[$head:meta])+
        pub struct $name:ident {
            $($(#[$doc:meta])+ $field:ident $(as $cell:ident)?: $type:ty = $default:tt
            $(, $method:ident $arguments:tt)*;)+
        }
    ) => {
        $(#[$head])+
        #[derive(Debug, Clone, PartialEq)]
        pub struct $name { $($(#[$doc])+ pub $field: $type,)+ }

        impl $name {
            pub(crate) const CELLS: &'static [$crate::value_type::Cell] =
                &[$($crate::value_type::Cell {
                    name: $crate::topic::entry!(@name $field $($cell)?),
                    value_type: <$type as $crate::field::Field>::TYPE $(.$method $arguments)*,
                    is_required: $crate::topic::entry!(@is_required $default),
                }),+];
        }

        impl $crate::field::Blank for $name {
            const BLANK: Self = Self { $($field: <$type as $crate::field::Blank>::BLANK),+ };
        }

        impl $crate::field::Field for $name {
            const TYPE: $crate::value_type::ValueType =
                $crate::value_type::ValueType::Table(Self::CELLS);

            fn to_value(&self) -> $crate::value::Value {
                let cells = [$({
                    let name = $crate::topic::entry!(@name $field $($cell)?);
                    let value = $crate::topic::entry!(@shown $default, self.$field);
                    value.map(|value| (name, $crate::field::to_unit(name, value)))
                }),+];
                $crate::value::Value::Table(cells.into_iter().flatten().collect())
            }

            fn from_value(table: &$crate::value::Value) -> Self {
                Self { $($field: {
                    let name = $crate::topic::entry!(@name $field $($cell)?);
                    let cell = table.cell(name).map(|value| {
                        let value = $crate::field::from_unit(name, value);
                        <$type as $crate::field::Field>::from_value(&value)
                    });
                    $crate::topic::entry!(@or_default $default, $type, cell)
                }),+ }
            }
        }

        impl $crate::field::Entry for $name {}
    };

    (@name $field:ident) => { stringify!($field) };
    (@name $field:ident $cell:ident) => { stringify!($cell) };

    (@is_required required) => { true };
    (@is_required $default:tt) => { false };

    (@shown required, $value:expr) => { Some($crate::field::Field::to_value(&$value)) };
    (@shown (shown $default:expr), $value:expr) => {
        Some($crate::field::Field::to_value(&$value))
    };
    (@shown none, $value:expr) => { $crate::field::Field::present(&$value) };
    (@shown ($default:expr), $value:expr) => {{
        let value = $crate::field::Field::to_value(&$value);
        (value != $crate::field::Field::to_value(&$default)).then_some(value)
    }};

    (@or_default required, $type:ty, $cell:expr) => { $cell.expect("it is required") };
    (@or_default none, $type:ty, $cell:expr) => {
        $cell.unwrap_or(<$type as $crate::field::Blank>::BLANK)
    };
    (@or_default (shown $default:expr), $type:ty, $cell:expr) => { $cell.unwrap_or($default) };
    (@or_default ($default:expr), $type:ty, $cell:expr) => { $cell.unwrap_or($default) };
}
pub(crate) use entry;

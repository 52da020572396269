//! Rust types of recipe fields: the value type, the conversion from and to values, and the
//! placeholder before a recipe is filled.
//!
//! A field whose name in a recipe ends in `_ms` is in milliseconds there and in seconds here.

use crate::units::{Bytes, BytesPerSecond, Seconds};
use crate::value::Value;
use crate::value_type::{Bound, ValueType, parse_shares, shares_text, shortest_f64};

/// Placeholder of a field before a recipe is filled; absent for a key without default.
pub(crate) trait Blank {
    const BLANK: Self;
}

/// Type of a field that a key or the cell of a table sets. The value type has accepted the value,
/// so a value of another type is a bug in the declaration.
pub(crate) trait Field: Blank + Sized {
    /// Value type without bounds; the declaration of the key narrows it.
    const TYPE: ValueType;

    fn to_value(&self) -> Value;

    fn from_value(value: &Value) -> Self;

    /// Whether a key without default has no value.
    fn is_absent(&self) -> bool {
        false
    }

    /// Value of a key without default.
    fn present(&self) -> Option<Value> {
        (!self.is_absent()).then(|| self.to_value())
    }
}

/// Type of the entries of a list.
pub(crate) trait Entry: Field {}

/// Implements [`Field`]: value type, placeholder, value of a field, field of a value, and where a
/// key may be without value, whether it is absent; then the type parameters.
macro_rules! field {
    (
        $type:ty: $value_type:expr, blank $blank:expr, to $to:expr, from $from:expr
        $(, absent $absent:expr)? $(, for [$($parameters:tt)+])?
    ) => {
        impl $(<$($parameters)+>)? $crate::field::Blank for $type {
            const BLANK: Self = $blank;
        }

        impl $(<$($parameters)+>)? $crate::field::Field for $type {
            const TYPE: $crate::value_type::ValueType = $value_type;

            fn to_value(&self) -> $crate::value::Value {
                let to: fn(&Self) -> $crate::value::Value = $to;
                to(self)
            }

            fn from_value(value: &$crate::value::Value) -> Self {
                let from: fn(&$crate::value::Value) -> Self = $from;
                from(value)
            }

            $(fn is_absent(&self) -> bool {
                let is_absent: fn(&Self) -> bool = $absent;
                is_absent(self)
            })?
        }
    };
}
pub(crate) use field;

/// Bound of a number that every declaration replaces.
const NO_BOUND: Bound = Bound::Open(f64::NAN);

const FILLED_TEXT: ValueType = ValueType::Text { may_be_empty: false };
const INTEGER: ValueType = ValueType::Integer { min: 0, max: i64::MAX };
const NUMBER: ValueType = ValueType::Float { low: NO_BOUND, high: NO_BOUND, single: false };
const SINGLE: ValueType = ValueType::Float { low: NO_BOUND, high: NO_BOUND, single: true };

/// A count as a value; the largest one stands for those beyond it.
fn count<T: TryInto<i64>>(number: T) -> Value {
    Value::Integer(number.try_into().unwrap_or(i64::MAX))
}

field!(u8: INTEGER, blank 0, to |n| count(*n), from |v| v.as_integer() as Self);
field!(u32: INTEGER, blank 0, to |n| count(*n), from |v| v.as_integer() as Self);
field!(u64: INTEGER, blank 0, to |n| count(*n), from |v| v.as_integer() as Self);
field!(usize: INTEGER, blank 0, to |n| count(*n), from |v| v.as_integer() as Self);
field!(f64: NUMBER, blank 0.0, to |number| Value::Float(*number), from Value::as_float);
field!(f32: SINGLE, blank 0.0, to |number| Value::Float(shortest_f64(*number)),
    from |v| v.as_float() as Self);
field!(Seconds: NUMBER, blank Self(0.0), to |seconds| Value::Float(seconds.0),
    from |v| Self(v.as_float()));
field!(Bytes: ValueType::Bytes, blank Self(0), to |bytes| count(bytes.0),
    from |v| Self(v.as_integer() as u64));
field!(BytesPerSecond: ValueType::Bytes, blank Self(0.0), to |rate| Value::Integer(rate.0 as i64),
    from |v| Self(v.as_integer() as f64));
field!(bool: ValueType::Bool, blank false, to |flag| Value::Bool(*flag), from Value::as_bool,
    absent |flag| !flag);
field!(String: ValueType::Text { may_be_empty: true }, blank Self::new(),
    to |text| Value::Text(text.clone()), from |v| v.as_text().to_owned(), absent Self::is_empty);
field!(Option<T>: T::TYPE, blank None,
    to |value| value.as_ref().map_or_else(|| T::BLANK.to_value(), T::to_value),
    from |v| Some(T::from_value(v)), absent Self::is_none, for [T: Field]);
field!(Vec<T>: ValueType::List { of: &T::TYPE, max: usize::MAX }, blank Self::new(),
    to |entries| Value::List(entries.iter().map(T::to_value).collect()),
    from |v| v.as_list().iter().map(T::from_value).collect(), absent Self::is_empty,
    for [T: Entry]);
field!(Vec<String>: ValueType::List { of: &FILLED_TEXT, max: usize::MAX }, blank Self::new(),
    to |texts| Value::List(texts.iter().map(|text| Value::Text(text.clone())).collect()),
    from |v| v.as_list().iter().map(|text| text.as_text().to_owned()).collect(),
    absent Self::is_empty);
// Shares, as text.
field!(Vec<usize>: ValueType::Shares, blank Self::new(),
    to |shares| Value::Text(shares_text(shares)),
    from |v| parse_shares(v.as_text()).expect("the value type accepted it"));

impl Entry for u64 {}

/// A value of the recipe in the unit of its name: milliseconds are rounded to a nanosecond, so that
/// a value prints as it was written.
pub(crate) fn to_unit(name: &str, value: Value) -> Value {
    match value {
        Value::Float(seconds) if name.ends_with("_ms") => {
            Value::Float((seconds * 1e9).round() / 1e6)
        }
        other => other,
    }
}

/// A value in the unit of its name, for the recipe.
pub(crate) fn from_unit(name: &str, value: &Value) -> Value {
    match value {
        Value::Float(millis) if name.ends_with("_ms") => Value::Float(millis / 1e3),
        other => other.clone(),
    }
}

/// Text of a value that is chosen from measurements.
pub(crate) const AUTO: &str = "auto";

/// A value, or `auto`.
pub(crate) fn auto_value<T: Field>(value: &T, is_auto: bool) -> Value {
    if is_auto { Value::Text(AUTO.to_owned()) } else { value.to_value() }
}

/// The number, or `otherwise` until it is chosen; and whether it is `auto`.
pub(crate) fn auto_or<T: Field>(value: &Value, otherwise: T) -> (T, bool) {
    let is_auto = matches!(value, Value::Text(_));
    (if is_auto { otherwise } else { T::from_value(value) }, is_auto)
}

//! Floats in JSON. NaN and infinities, which JSON lacks, are written as strings, so that the events
//! of a diverged run stay readable.

use serde::{Deserialize, Deserializer, Serializer, de};

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
pub(crate) fn serialize<S: Serializer>(value: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    match value {
        value if value.is_finite() => serializer.serialize_f64(*value),
        value if value.is_nan() => serializer.serialize_str("NaN"),
        value if value.is_sign_positive() => serializer.serialize_str("Infinity"),
        _ => serializer.serialize_str("-Infinity"),
    }
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    match Number::deserialize(deserializer)? {
        Number::Finite(value) => Ok(value),
        Number::Named(name) => match name.as_str() {
            "NaN" => Ok(f64::NAN),
            "Infinity" => Ok(f64::INFINITY),
            "-Infinity" => Ok(f64::NEG_INFINITY),
            _ => Err(de::Error::custom(format!("{name:?} is not a number"))),
        },
    }
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Number {
    Finite(f64),
    Named(String),
}

/// Optional numbers, with `null` for none.
pub(crate) mod option {
    use serde::{Deserialize, Deserializer, Serializer};

    #[expect(clippy::ref_option, reason = "serde calls it with a reference")]
    pub(crate) fn serialize<S: Serializer>(
        value: &Option<f64>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        match value {
            Some(value) => super::serialize(value, serializer),
            None => serializer.serialize_none(),
        }
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<f64>, D::Error> {
        #[derive(Deserialize)]
        struct Present(#[serde(with = "super")] f64);
        Ok(Option::<Present>::deserialize(deserializer)?.map(|Present(value)| value))
    }
}

#[cfg(test)]
mod tests {
    use serde::{Deserialize, Serialize};

    #[derive(Serialize, Deserialize)]
    struct Fields {
        #[serde(with = "super")]
        value: f64,
        #[serde(with = "super::option")]
        maybe: Option<f64>,
    }

    #[test]
    fn every_kind_of_float_survives_bit_for_bit() {
        let awkward = [0.0, -0.0, 0.1, 1.0 / 3.0, f64::MIN_POSITIVE, f64::MAX, 5e-324, -1e300];
        for value in awkward.into_iter().chain([f64::INFINITY, f64::NEG_INFINITY]) {
            let text = serde_json::to_string(&Fields { value, maybe: Some(value) }).unwrap();
            let read: Fields = serde_json::from_str(&text).unwrap();
            assert_eq!(read.value.to_bits(), value.to_bits(), "{text}");
            assert_eq!(read.maybe.unwrap().to_bits(), value.to_bits(), "{text}");
        }
    }

    #[test]
    fn nan_and_none_are_distinct() {
        let text = serde_json::to_string(&Fields { value: f64::NAN, maybe: None }).unwrap();
        assert_eq!(text, r#"{"value":"NaN","maybe":null}"#);
        let read: Fields = serde_json::from_str(&text).unwrap();
        assert!(read.value.is_nan());
        assert!(read.maybe.is_none());
    }

    #[test]
    fn integers_are_read_and_other_strings_refused() {
        let read: Fields = serde_json::from_str(r#"{"value":3,"maybe":4}"#).unwrap();
        assert_eq!((read.value.to_bits(), read.maybe), (3.0_f64.to_bits(), Some(4.0)));
        assert!(serde_json::from_str::<Fields>(r#"{"value":"3","maybe":4}"#).is_err());
    }
}

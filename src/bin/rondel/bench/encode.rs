//! Small numbers as bytes of any element type.

use half::{bf16, f16};
use rondel::{DataType, F8E4M3, F8E5M2};

/// The bytes of one element.
pub(crate) type Encoded = std::iter::Take<std::array::IntoIter<u8, 8>>;

/// `value` in the type; integers wrap.
pub(crate) fn encode(dtype: DataType, value: i64) -> Encoded {
    match dtype {
        _ if dtype.is_float() => encode_float(dtype, value as f64),
        DataType::I8 | DataType::U8 | DataType::Bool => element([wrap(dtype, value) as u8]),
        DataType::I16 | DataType::U16 => element((value as u16).to_ne_bytes()),
        DataType::I32 | DataType::U32 => element((value as u32).to_ne_bytes()),
        _ => element(value.to_ne_bytes()),
    }
}

/// `value` rounded to a floating type.
pub(crate) fn encode_float(dtype: DataType, value: f64) -> Encoded {
    match dtype {
        DataType::F16 => element(f16::from_f64(value).to_ne_bytes()),
        DataType::Bf16 => element(bf16::from_f64(value).to_ne_bytes()),
        DataType::F32 => element((value as f32).to_ne_bytes()),
        DataType::F8E4M3 => element([F8E4M3::from_f32(value as f32).0]),
        DataType::F8E5M2 => element([F8E5M2::from_f32(value as f32).0]),
        _ => element(value.to_ne_bytes()),
    }
}

/// What an integer type holds after `value` was stored in it.
pub(crate) fn wrap(dtype: DataType, value: i64) -> i64 {
    match dtype {
        DataType::I8 => i64::from(value as i8),
        DataType::U8 => i64::from(value as u8),
        DataType::I16 => i64::from(value as i16),
        DataType::U16 => i64::from(value as u16),
        DataType::I32 => i64::from(value as i32),
        DataType::U32 => i64::from(value as u32),
        DataType::Bool => i64::from(value != 0),
        _ => value,
    }
}

fn element<const N: usize>(bytes: [u8; N]) -> Encoded {
    let mut room = [0; 8];
    room[..N].copy_from_slice(&bytes);
    room.into_iter().take(N)
}

/// The value of one element of a floating type.
#[cfg(test)]
pub(crate) fn decode_float(dtype: DataType, bytes: &[u8]) -> f64 {
    match (dtype, bytes) {
        (DataType::F16, [a, b]) => f16::from_ne_bytes([*a, *b]).to_f64(),
        (DataType::Bf16, [a, b]) => bf16::from_ne_bytes([*a, *b]).to_f64(),
        (DataType::F32, _) => f64::from(f32::from_ne_bytes(bytes.try_into().unwrap())),
        (DataType::F8E4M3, [a]) => f64::from(F8E4M3(*a).to_f32()),
        (DataType::F8E5M2, [a]) => f64::from(F8E5M2(*a).to_f32()),
        _ => f64::from_ne_bytes(bytes.try_into().unwrap()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_take_the_size_of_their_type() {
        for dtype in DataType::ALL {
            assert_eq!(encode(dtype, 1).count(), dtype.size(), "{dtype:?}");
        }
        assert_eq!(encode(DataType::I16, -2).collect::<Vec<_>>(), (-2i16).to_ne_bytes());
        assert_eq!(encode(DataType::U8, 257).collect::<Vec<_>>(), [1]);
        assert_eq!(encode(DataType::Bool, 257).collect::<Vec<_>>(), [1]);
        assert_eq!(encode(DataType::F32, 3).collect::<Vec<_>>(), 3f32.to_ne_bytes());
    }
}

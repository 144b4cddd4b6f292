//! The frame around a message of gRPC: a flag and a length before its bytes.

/// The flag and four bytes of length.
const HEAD: usize = 5;

/// A message in a frame of its own.
pub(super) fn framed(message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).unwrap_or(u32::MAX);
    let mut frame = Vec::with_capacity(HEAD + message.len());
    frame.push(0);
    frame.extend(length.to_be_bytes());
    frame.extend(message);
    frame
}

/// The only message of a body.
///
/// # Errors
///
/// Why there is none.
pub(super) fn unframed(body: &[u8]) -> Result<&[u8], &'static str> {
    let Some((head, message)) = body.split_first_chunk::<HEAD>() else {
        return Err("its answer holds no message");
    };
    let [flag, length @ ..] = *head;
    match flag {
        0 => {}
        1 => return Err("its answer is compressed, which was not offered"),
        _ => return Err("its answer is no frame of gRPC"),
    }
    if usize::try_from(u32::from_be_bytes(length)) != Ok(message.len()) {
        return Err("its answer is not one whole message");
    }
    Ok(message)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_body_is_one_whole_message() {
        assert_eq!(unframed(&framed(b"abc")), Ok(&b"abc"[..]));
        assert_eq!(unframed(&framed(b"")), Ok(&b""[..]));
        for bad in [
            &b""[..],
            b"\0\0\0\0",
            b"\0\0\0\0\x04abc",
            b"\0\0\0\0\x02abc",
            b"\0\xff\xff\xff\xffabc",
            b"\x01\0\0\0\x03abc",
            b"\x02\0\0\0\x03abc",
        ] {
            assert!(unframed(bad).is_err(), "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn any_body_is_judged(body in prop::collection::vec(any::<u8>(), 0..64)) {
            if let Ok(message) = unframed(&body) {
                prop_assert_eq!(framed(message), body.clone());
            }
        }
    }
}

//! Fuzz target for responses of the config cluster: see [`strait_base::testing::fuzz`].

use super::{
    ConfigMapObject, ConfigObject, NamespaceObject, OwnedObject, ReadObject, SecretObject,
};

/// Parses any bytes as the response to a list. The first byte selects the kind.
pub(in crate::store) fn fuzz(bytes: &[u8]) -> bool {
    fn read<T: OwnedObject>(bytes: &[u8]) -> bool
    where
        ReadObject: From<T>,
    {
        let Ok(objects) = strait_kube_client::read_objects::<T>(bytes) else { return false };
        let is_usable = |found: ReadObject| !matches!(found, ReadObject::Unusable(..));
        objects.into_iter().map(ReadObject::from).map(is_usable).fold(false, |any, one| any | one)
    }
    let Some((first, bytes)) = bytes.split_first() else { return false };
    match first % 4 {
        0 => read::<SecretObject>(bytes),
        1 => read::<ConfigMapObject>(bytes),
        2 => read::<NamespaceObject>(bytes),
        _ => read::<ConfigObject>(bytes),
    }
}

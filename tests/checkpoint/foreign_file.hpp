#pragma once
// A model as others write it with the HDF5 library: old metadata without checksums, texts of
// variable length, compressed tensors.
#include <hdf5.h>

#include <filesystem>
#include <vector>

namespace coppice::test {

struct ForeignFile {
  explicit ForeignFile(const std::filesystem::path& path)
      : file(H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT)) {
    for (const char* group : {"/config", "/parameters"}) {
      H5Gclose(H5Gcreate2(file, group, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
    }
    string_type = H5Tcopy(H5T_C_S1);
    H5Tset_size(string_type, H5T_VARIABLE);
    H5Tset_cset(string_type, H5T_CSET_UTF8);
    scalar = H5Screate(H5S_SCALAR);
  }
  ~ForeignFile() {
    H5Sclose(scalar);
    H5Tclose(string_type);
    H5Fclose(file);
  }
  void attribute(const char* name, hid_t type, const void* value) const {
    const hid_t id = H5Acreate2(file, name, type, scalar, H5P_DEFAULT, H5P_DEFAULT);
    H5Awrite(id, type, value);
    H5Aclose(id);
  }
  void kind(const char* value) const { attribute("kind", string_type, &value); }
  void format(int value) const { attribute("coppice_format", H5T_NATIVE_INT, &value); }
  void config(const char* value) const {
    const hid_t id = H5Dcreate2(file, "/config/model", string_type, scalar, H5P_DEFAULT,
                                H5P_DEFAULT, H5P_DEFAULT);
    H5Dwrite(id, string_type, H5S_ALL, H5S_ALL, H5P_DEFAULT, &value);
    H5Dclose(id);
  }
  void tensor(const char* name, hid_t type, std::vector<hsize_t> shape, const void* values,
              bool compressed = false) const {
    const hid_t space = H5Screate_simple(static_cast<int>(shape.size()), shape.data(), nullptr);
    const hid_t properties = H5Pcreate(H5P_DATASET_CREATE);
    if (compressed) {
      H5Pset_chunk(properties, static_cast<int>(shape.size()), shape.data());
      H5Pset_deflate(properties, 4);
    }
    const hid_t id = H5Dcreate2(file, name, type, space, H5P_DEFAULT, properties, H5P_DEFAULT);
    if (values) H5Dwrite(id, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, values);
    H5Dclose(id);
    H5Pclose(properties);
    H5Sclose(space);
  }
  hid_t file, string_type, scalar;
};

}  // namespace coppice::test

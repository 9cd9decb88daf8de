# Copies what the programs need from Debian into lib/ beside them, so that the folder runs on a node that has torch and nothing of
# Debian's -dev packages:  cmake -DPROGRAMS=a;b -DINTO=folder/lib -DTORCH_LIBS=a;b -DPATCHELF=patchelf -P Bundle.cmake
# libtorch and its companions, the C and C++ run times and the loader stay those of the node.
cmake_minimum_required(VERSION 3.25)
file(GET_RUNTIME_DEPENDENCIES LIBRARIES ${PROGRAMS} DIRECTORIES ${TORCH_LIBS}
  RESOLVED_DEPENDENCIES_VAR found UNRESOLVED_DEPENDENCIES_VAR missing
  PRE_EXCLUDE_REGEXES "^ld-linux" "^lib(c|m|dl|rt|pthread|resolv|stdc\\+\\+|gcc_s|gomp|numa)[-.]" "^lib(torch|c10|cu|nv|shm|mkl|ingot)"
  POST_EXCLUDE_REGEXES "^${INTO}/")
foreach(library ${found})
  file(REAL_PATH "${library}" real)
  cmake_path(GET library FILENAME name)
  if("${real}" IS_NEWER_THAN "${INTO}/${name}")
    configure_file("${real}" "${INTO}/${name}" COPYONLY)
    # Each copy finds the others beside itself: a run path is not inherited from the program.
    execute_process(COMMAND "${PATCHELF}" --set-rpath "$ORIGIN" "${INTO}/${name}" COMMAND_ERROR_IS_FATAL ANY)
    file(TOUCH "${INTO}/${name}")
  endif()
endforeach()
